// Array types for the Python bindings. All arrays are contiguous and on the CPU.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace phalanx {

// A read-only argument. `Shape` is nb::ndim<N> or nb::shape<...>. Lists and other dtypes are converted unless
// the argument is bound with `.noconvert()`.
template <typename T, typename Shape>
using InputArray =
    nanobind::ndarray<const T, nanobind::numpy, Shape, nanobind::c_contig, nanobind::device::cpu>;

// An argument that the function writes to. Bind it with `.noconvert()`: a converted copy would be lost.
template <typename T, typename Shape>
using OutputArray = nanobind::ndarray<T, nanobind::numpy, Shape, nanobind::c_contig, nanobind::device::cpu>;

// A new NumPy array as a return value. `Shape` is only for the type stub.
template <typename T, typename Shape>
using NewArray = nanobind::ndarray<nanobind::numpy, T, Shape>;

// Moves a vector into a NumPy array without copying its elements.
template <typename Shape, typename T>
NewArray<T, Shape> to_numpy(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  nanobind::capsule owner(owned, [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return NewArray<T, Shape>(owned->data(), shape, owner);
}

}  // namespace phalanx
