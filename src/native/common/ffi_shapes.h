// Checks that XLA custom calls make before they read a buffer. The handlers compare the shapes of all
// buffers; the kernels check the values inside.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace phalanx {

namespace ffi = xla::ffi;

// Returns the memory of a result that updates an operand. XLA usually gives both the same buffer; if not, the
// operand is copied.
template <typename Buffer, typename Result>
auto* update_in_place(const Buffer& operand, Result& result) {
  if (operand.untyped_data() != result->untyped_data() && operand.size_bytes() != 0)
    std::memcpy(result->untyped_data(), operand.untyped_data(), operand.size_bytes());
  return result->typed_data();
}

// Collects the first error in the shapes and attributes of a custom call.
class ShapeCheck {
 public:
  explicit ShapeCheck(const char* call) : call_(call) {}

  template <typename Buffer>
  void expect(const char* name, const Buffer& buffer, std::initializer_list<int64_t> expected) {
    const auto found = buffer.dimensions();
    bool equal = found.size() == expected.size();
    size_t axis = 0;
    for (const int64_t size : expected) equal = equal && found[axis++] == size;
    if (equal || !message_.empty()) return;
    message_ = std::string(call_) + ": " + name + " must have the shape " + to_string(expected) + ", got " +
               to_string(found);
  }

  // For buffers whose number of elements matters, but not how they are arranged.
  template <typename Buffer>
  void expect_size(const char* name, const Buffer& buffer, int64_t expected) {
    const int64_t found = static_cast<int64_t>(buffer.element_count());
    if (found == expected || !message_.empty()) return;
    message_ = std::string(call_) + ": " + name + " must have " + std::to_string(expected) +
               " elements, got " + std::to_string(found);
  }

  void require(bool condition, const char* message) {
    if (!condition && message_.empty()) message_ = std::string(call_) + ": " + message;
  }

  bool failed() const { return !message_.empty(); }
  ffi::Error error() const { return ffi::Error::InvalidArgument(message_); }

 private:
  template <typename Shape>
  static std::string to_string(const Shape& shape) {
    std::string out = "[";
    for (const int64_t size : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(size);
    return out + "]";
  }

  const char* call_;
  std::string message_;
};

// Returns the size of an axis, or -1 (which no other size equals) if the buffer has fewer axes.
template <typename Buffer>
int64_t axis_size(const Buffer& buffer, size_t axis) {
  return axis < buffer.dimensions().size() ? buffer.dimensions()[axis] : -1;
}

// `NoThrow<handler>::call` is `handler` with exceptions turned into errors, because XLA does not catch them.
template <auto handler>
struct NoThrow;

template <typename... Args, ffi::Error (*handler)(Args...)>
struct NoThrow<handler> {
  static ffi::Error call(Args... args) {
    try {
      return handler(std::move(args)...);
    } catch (const std::bad_alloc&) {
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, "Phalanx: not enough memory");
    } catch (const std::exception& error) {
      return ffi::Error(ffi::ErrorCode::kInternal, std::string("Phalanx: ") + error.what());
    }
  }
};

}  // namespace phalanx
