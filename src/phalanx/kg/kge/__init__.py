"""Knowledge-graph embeddings (KGE) in JAX: TransE, DistMult, ComplEx, RotatE and TuckER."""

from phalanx.extras import require_jax

require_jax(__name__)

from phalanx.kg.kge.embedding import (
    KGE as KGE,
    calibrate as calibrate,
    load_kge as load_kge,
    load_kge_config as load_kge_config,
    load_kge_metadata as load_kge_metadata,
    save_kge as save_kge,
)
from phalanx.kg.kge.models import (
    ComplEx as ComplEx,
    DistMult as DistMult,
    EmbeddingModel as EmbeddingModel,
    KGEModelConfig as KGEModelConfig,
    RotatE as RotatE,
    TransE as TransE,
    TuckER as TuckER,
)
