// The custom calls of language models.

#include "module.h"
#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_lm_attention_forward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_lm_attention_backward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(phalanx_lm_generate);

namespace phalanx {

void bind_lm(FfiTargets& targets) {
  targets.emplace_back("phalanx_lm_attention_forward", phalanx_lm_attention_forward);
  targets.emplace_back("phalanx_lm_attention_backward", phalanx_lm_attention_backward);
  targets.emplace_back("phalanx_lm_generate", phalanx_lm_generate);
}

}  // namespace phalanx
