// `pack_lengths`, `fill_packs` and what plans need of `phalanx._native`. Python checks the arguments and words the errors;
// what is checked here again is what would otherwise read or write outside an array.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

#include "data/packing.h"

namespace nb = nanobind;

namespace phalanx::packing {

namespace {

template <typename T, size_t Dimensions>
using Array = nb::ndarray<T, nb::numpy, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

int32_t pack_lengths(Array<const int32_t, 1> lengths, int32_t capacity, const std::string& mode,
                     Array<int32_t, 1> bins) {
  const int64_t count = static_cast<int64_t>(lengths.shape(0));
  if (capacity < 1 || capacity > 1 << 28) throw std::invalid_argument("capacity must be 1 to 2^28");
  if (bins.shape(0) != lengths.shape(0)) throw std::invalid_argument("bins and lengths must be equally long");
  const int32_t* from = lengths.data();
  int32_t* to = bins.data();
  nb::gil_scoped_release unlocked;
  std::vector<int64_t> counts(capacity + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (from[i] < 1 || from[i] > capacity) throw std::invalid_argument("lengths must be in 1..capacity");
    ++counts[from[i]];
  }
  if (mode == "greedy") return next_fit(from, count, capacity, to);
  if (mode == "first_fit") return first_fit(from, count, capacity, to);
  if (mode == "best_fit") return best_fit(from, count, capacity, to);
  if (mode != "best_fit_decreasing" && mode != "hybrid") throw std::invalid_argument("unknown mode " + mode);
  const Packing packing = mode == "hybrid" ? hybrid(counts, capacity) : best_fit_decreasing(counts, capacity);
  deal(from, count, counts, packing.runs, to);
  return packing.bins;
}

void sort_keys(Array<uint64_t, 1> keys, uint64_t low, Array<int32_t, 1> order,
               std::optional<Array<int16_t, 1>> values) {
  if (keys.shape(0) != order.shape(0) || (values && values->shape(0) != keys.shape(0))) {
    throw std::invalid_argument("keys, order and values must be equally long");
  }
  if (low > 0x7fffffff) throw std::invalid_argument("the low bits must fit 31");
  uint64_t* from = keys.data();
  int32_t* to = order.data();
  int16_t* carried = values ? values->data() : nullptr;
  const int64_t count = static_cast<int64_t>(keys.shape(0));
  nb::gil_scoped_release unlocked;
  sort_random_keys(from, count, low, to, carried);
}

void take_runs(Array<const int32_t, 1> values, Array<const int64_t, 1> starts, Array<const int64_t, 1> ends,
               Array<int32_t, 1> taken) {
  const int64_t runs = static_cast<int64_t>(starts.shape(0)), size = static_cast<int64_t>(values.shape(0));
  if (ends.shape(0) != starts.shape(0)) throw std::invalid_argument("starts and ends must be equally many");
  const int64_t *first = starts.data(), *last = ends.data();
  const int32_t* from = values.data();
  int32_t* to = taken.data();
  int64_t left = static_cast<int64_t>(taken.shape(0));
  nb::gil_scoped_release unlocked;
  for (int64_t run = 0; run < runs; ++run) {
    if (first[run] < 0 || first[run] > last[run] || last[run] > size) {
      throw std::invalid_argument("a run lies outside the values");
    }
    left -= last[run] - first[run];
    if (left < 0) break;
  }
  if (left != 0) throw std::invalid_argument("taken must hold the runs exactly");
  copy_runs(from, first, last, runs, to);
}

// The texts end to end as bytes, and the length of each; nothing where one is not a plain ASCII string.
// Strings lie anywhere in memory: they are asked for some places before they are read.
nb::object join_texts(nb::list texts, Array<int32_t, 1> lengths) {
  constexpr Py_ssize_t ahead = 16;
  const Py_ssize_t count = PyList_GET_SIZE(texts.ptr());
  if (static_cast<Py_ssize_t>(lengths.shape(0)) != count) {
    throw std::invalid_argument("there must be a length for each text");
  }
  const auto at = [&texts](Py_ssize_t i) { return PyList_GET_ITEM(texts.ptr(), i); };
  Py_ssize_t total = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i + ahead < count) __builtin_prefetch(at(i + ahead));
    PyObject* text = at(i);
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text)) return nb::none();
    const Py_ssize_t size = PyUnicode_GET_LENGTH(text);
    if (size > INT32_MAX) return nb::none();
    lengths.data()[i] = static_cast<int32_t>(size);
    total += size;
  }
  nb::object joined = nb::steal(PyBytes_FromStringAndSize(nullptr, total));
  if (!joined.is_valid()) throw nb::python_error();
  char* to = PyBytes_AS_STRING(joined.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i + ahead < count) __builtin_prefetch(at(i + ahead));
    // Its own length once more, not the array's, which is the caller's.
    const Py_ssize_t size = PyUnicode_GET_LENGTH(at(i));
    std::memcpy(to, PyUnicode_DATA(at(i)), size);
    to += size;
  }
  return joined;
}

// One packed row after another: segments, a separator between them if asked for, then padding.
// `starts` and `lengths` say where a segment's tokens lie in `tokens`; `offsets` which segments a row has.
void fill_packs(Array<const int32_t, 1> tokens, std::optional<Array<const int8_t, 1>> loss,
                Array<const int64_t, 1> starts, Array<const int32_t, 1> lengths,
                Array<const int64_t, 1> offsets, std::optional<int32_t> separator, int32_t pad,
                Array<int32_t, 2> input_ids, Array<int8_t, 2> loss_mask, Array<int32_t, 2> segment_ids,
                Array<int32_t, 2> position_ids) {
  const int64_t rows = static_cast<int64_t>(input_ids.shape(0));
  const int64_t width = static_cast<int64_t>(input_ids.shape(1));
  const int64_t segments = static_cast<int64_t>(lengths.shape(0));
  const int64_t total = static_cast<int64_t>(tokens.shape(0));
  for (const auto* shape : {loss_mask.shape_ptr(), segment_ids.shape_ptr(), position_ids.shape_ptr()}) {
    if (static_cast<int64_t>(shape[0]) != rows || static_cast<int64_t>(shape[1]) != width) {
      throw std::invalid_argument("the packed arrays must have one shape");
    }
  }
  if (static_cast<int64_t>(offsets.shape(0)) != rows + 1 || static_cast<int64_t>(starts.shape(0)) != segments) {
    throw std::invalid_argument("offsets must have one entry more than rows, starts one for each length");
  }
  if (loss && static_cast<int64_t>(loss->shape(0)) != total) {
    throw std::invalid_argument("loss and tokens must be equally long");
  }
  const int32_t* from = tokens.data();
  const int8_t* loss_from = loss ? loss->data() : nullptr;
  const int64_t *start = starts.data(), *offset = offsets.data();
  const int32_t* length = lengths.data();
  int32_t *ids = input_ids.data(), *segment = segment_ids.data(), *position = position_ids.data();
  int8_t* mask = loss_mask.data();
  nb::gil_scoped_release unlocked;

  for (int64_t row = 0; row < rows; ++row) {
    if (offset[row] < 0 || offset[row] > offset[row + 1] || offset[row + 1] > segments) {
      throw std::invalid_argument("offsets must ascend from 0 to the number of segments");
    }
    int64_t used = 0;
    for (int64_t s = offset[row]; s < offset[row + 1]; ++s) {
      if (length[s] < 0 || start[s] < 0 || start[s] > total - length[s]) {
        throw std::invalid_argument("a segment lies outside the tokens");
      }
      used += length[s] + (separator && s > offset[row] ? 1 : 0);
    }
    if (used > width) throw std::invalid_argument("a row's segments are longer than the row");
  }

  for (int64_t row = 0; row < rows; ++row) {
    const int64_t row_end = (row + 1) * width;
    int64_t at = row * width;
    for (int64_t s = offset[row]; s < offset[row + 1]; ++s) {
      const int32_t here = length[s];
      const int32_t number = static_cast<int32_t>(s - offset[row] + 1);
      // A separator belongs to the segment that it ends, so it continues its numbers and positions.
      const int32_t whole = here + (separator && s + 1 < offset[row + 1] ? 1 : 0);
      std::memcpy(ids + at, from + start[s], here * sizeof(int32_t));
      if (loss_from != nullptr) {
        std::memcpy(mask + at, loss_from + start[s], here);
      } else {
        std::memset(mask + at, 1, here);
      }
      if (whole > here) {
        ids[at + here] = *separator;
        mask[at + here] = 0;
      }
      std::fill_n(segment + at, whole, number);
      std::iota(position + at, position + at + whole, 0);
      at += whole;
    }
    std::fill_n(ids + at, row_end - at, pad);
    std::memset(mask + at, 0, row_end - at);
    std::memset(segment + at, 0, (row_end - at) * sizeof(int32_t));
    std::memset(position + at, 0, (row_end - at) * sizeof(int32_t));
  }
}

}  // namespace

void bind_packing(nb::module_& module) {
  module.def("pack_lengths", &pack_lengths, nb::arg("lengths").noconvert(), nb::arg("capacity"),
             nb::arg("mode"), nb::arg("bins").noconvert(),
             "Write each sample's bin into `bins`; returns the number of bins.");
  module.def("sort_random_keys", &sort_keys, nb::arg("keys").noconvert(), nb::arg("low"),
             nb::arg("order").noconvert(), nb::arg("values").noconvert().none() = nb::none(),
             "Use the keys up, and write their low bits in their order; values follow their keys.");
  module.def("take_runs", &take_runs, nb::arg("values").noconvert(), nb::arg("starts").noconvert(),
             nb::arg("ends").noconvert(), nb::arg("taken").noconvert(),
             "Copy runs of values one behind the other into `taken`.");
  module.def("join_texts", &join_texts, nb::arg("texts"), nb::arg("lengths").noconvert(),
             "The texts end to end, and the length of each written into `lengths`; None unless all are ASCII.");
  module.def("fill_packs", &fill_packs, nb::arg("tokens").noconvert(), nb::arg("loss").noconvert().none(),
             nb::arg("starts").noconvert(), nb::arg("lengths").noconvert(), nb::arg("offsets").noconvert(),
             nb::arg("separator").none(), nb::arg("pad"), nb::arg("input_ids").noconvert(),
             nb::arg("loss_mask").noconvert(), nb::arg("segment_ids").noconvert(),
             nb::arg("position_ids").noconvert(), "Copy tokens into packed rows.");
}

}  // namespace phalanx::packing
