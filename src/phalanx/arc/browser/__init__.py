"""Lets readers of a run's report try the trained ARC policy in their browser, without Python.

At the end of a run, `export` writes a file with the weights of the policy and some tasks to the run folder.
When the report is created, `report_panel` validates this file and adds this package's scripts to the page:
`network.js` evaluates the policy network, `rules.js` executes its actions, `grids.js` draws and edits grids,
and `panel.js` contains the controls.
"""
