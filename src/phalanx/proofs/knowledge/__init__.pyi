# The public names of this room, and where each is defined; `__init__.py` loads them when first asked for.

from .atoms import (
    Atom as Atom,
    Rule as Rule,
    parse_atom as parse_atom,
    parse_rule as parse_rule,
)
from .chaining import (
    entailed as entailed,
    proof_depths as proof_depths,
    proof_rounds as proof_rounds,
)
from .data import (
    DataHandler as DataHandler,
    available_knowledge as available_knowledge,
)
from .files import (
    KnowledgeBase as KnowledgeBase,
    read_knowledge as read_knowledge,
    write_knowledge as write_knowledge,
)
from .generated import (
    generate_family as generate_family,
)
from .sources import (
    SOURCES as SOURCES,
    Source as Source,
    fetch_knowledge as fetch_knowledge,
)
from .vocabulary import (
    EncodedAtom as EncodedAtom,
    EncodedRule as EncodedRule,
    IndexManager as IndexManager,
)
