"""Import paths and names of other projects, implemented on top of Phalanx."""
