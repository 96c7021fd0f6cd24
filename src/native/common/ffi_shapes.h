// What XLA custom calls check before they touch a buffer: that every size goes with every other, or a complaint in
// words. What is in the buffers is for the kernels to check.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace phalanx {

namespace ffi = xla::ffi;

// Results alias the operands that they update; copy where XLA gave the result a buffer of its own.
template <typename Buffer, typename Result>
auto* updated(const Buffer& from, Result& to) {
  if (from.untyped_data() != to->untyped_data() && from.size_bytes() != 0)
    std::memcpy(to->untyped_data(), from.untyped_data(), from.size_bytes());
  return to->typed_data();
}

// The first complaint about the sizes of a call's buffers, in words.
class Sizes {
 public:
  explicit Sizes(const char* call) : call_(call) {}

  template <typename Buffer>
  void expect(const char* name, const Buffer& buffer, std::initializer_list<int64_t> wanted) {
    const auto found = buffer.dimensions();
    bool same = found.size() == wanted.size();
    size_t axis = 0;
    for (const int64_t size : wanted) same = same && found[axis++] == size;
    if (same || !complaint_.empty()) return;
    complaint_ = std::string(call_) + ": " + name + " must be " + text(wanted) + ", got " + text(found);
  }

  void require(bool holds, const char* rule) {
    if (!holds && complaint_.empty()) complaint_ = std::string(call_) + ": " + rule;
  }

  bool wrong() const { return !complaint_.empty(); }
  ffi::Error error() const { return ffi::Error::InvalidArgument(complaint_); }

 private:
  template <typename Shape>
  static std::string text(const Shape& shape) {
    std::string out = "[";
    for (const int64_t size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
    return out + "]";
  }

  const char* call_;
  std::string complaint_;
};

// One axis of a buffer that may have too few of them; a size that nothing else has, where it is missing.
template <typename Buffer>
int64_t axis(const Buffer& buffer, size_t which) {
  return which < buffer.dimensions().size() ? buffer.dimensions()[which] : -1;
}

}  // namespace phalanx
