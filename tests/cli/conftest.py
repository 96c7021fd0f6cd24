from tests.helpers.cli import phalanx as phalanx
