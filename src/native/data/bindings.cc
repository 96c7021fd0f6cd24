// Python functions for packing, shuffling and copying tokens. Python code validates the arguments and raises
// errors that users see; the checks here only prevent reads and writes outside of arrays.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/arrays.h"
#include "data/collation.h"
#include "data/packing.h"
#include "data/shuffle.h"
#include "module.h"

namespace nb = nanobind;

namespace phalanx {
namespace data {
namespace {

template <typename T>
using InputVector = InputArray<T, nb::ndim<1>>;
template <typename T>
using OutputVector = OutputArray<T, nb::ndim<1>>;
template <typename T>
using OutputMatrix = OutputArray<T, nb::ndim<2>>;

int32_t pack_lengths(InputVector<int32_t> lengths, int32_t capacity, const std::string& mode,
                     OutputVector<int32_t> bins) {
  const int64_t count = static_cast<int64_t>(lengths.shape(0));
  if (capacity < 1 || capacity > 1 << 28) throw std::invalid_argument("capacity must be 1 to 2^28");
  if (bins.shape(0) != lengths.shape(0))
    throw std::invalid_argument("bins and lengths must have the same length");
  const int32_t* from = lengths.data();
  int32_t* to = bins.data();
  nb::gil_scoped_release unlocked;
  std::vector<int64_t> counts(capacity + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (from[i] < 1 || from[i] > capacity) throw std::invalid_argument("lengths must be 1 to capacity");
    ++counts[from[i]];
  }
  if (mode == "next_fit" || mode == "greedy") return next_fit(from, count, capacity, to);
  if (mode == "first_fit") return first_fit(from, count, capacity, to);
  if (mode == "best_fit") return best_fit(from, count, capacity, to);
  Packing packing;
  if (mode == "best_fit_decreasing")
    packing = best_fit_decreasing(counts, capacity);
  else if (mode == "subset_sum" || mode == "hybrid")
    packing = subset_sum(counts, capacity);
  else
    throw std::invalid_argument("unknown packing mode " + mode);
  assign_bins(from, count, counts, packing.runs, to);
  return packing.bins;
}

void sort_keys(OutputVector<uint64_t> keys, uint64_t low_mask, OutputVector<int32_t> order,
               std::optional<OutputVector<int16_t>> values) {
  if (keys.shape(0) != order.shape(0) || (values && values->shape(0) != keys.shape(0)))
    throw std::invalid_argument("keys, order and values must have the same length");
  if (low_mask > 0x7fffffff) throw std::invalid_argument("low_mask must have at most 31 bits");
  uint64_t* key_data = keys.data();
  int32_t* order_data = order.data();
  int16_t* value_data = values ? values->data() : nullptr;
  const int64_t count = static_cast<int64_t>(keys.shape(0));
  nb::gil_scoped_release unlocked;
  sort_random_keys(key_data, count, low_mask, order_data, value_data);
}

void gather(InputVector<int32_t> values, InputVector<int64_t> starts, InputVector<int64_t> ends,
            OutputVector<int32_t> out) {
  const int64_t num_runs = static_cast<int64_t>(starts.shape(0)),
                size = static_cast<int64_t>(values.shape(0));
  if (ends.shape(0) != starts.shape(0))
    throw std::invalid_argument("starts and ends must have the same length");
  const int64_t *begin = starts.data(), *end = ends.data();
  const int32_t* from = values.data();
  int32_t* to = out.data();
  int64_t remaining = static_cast<int64_t>(out.shape(0));
  nb::gil_scoped_release unlocked;
  for (int64_t run = 0; run < num_runs; ++run) {
    if (begin[run] < 0 || begin[run] > end[run] || end[run] > size)
      throw std::invalid_argument("a run is outside of the values");
    remaining -= end[run] - begin[run];
    if (remaining < 0) break;
  }
  if (remaining != 0) throw std::invalid_argument("the length of out must be the total length of the runs");
  gather_runs(from, begin, end, num_runs, to);
}

// Strings can be anywhere in memory, so each is prefetched before it is read.
std::optional<nb::bytes> concat_strings(nb::typed<nb::list, nb::str> strings, OutputVector<int32_t> lengths) {
  constexpr Py_ssize_t prefetch_distance = 16;
  const Py_ssize_t count = PyList_GET_SIZE(strings.ptr());
  if (static_cast<Py_ssize_t>(lengths.shape(0)) != count)
    throw std::invalid_argument("strings and lengths must have the same length");
  const auto at = [&strings](Py_ssize_t i) { return PyList_GET_ITEM(strings.ptr(), i); };
  Py_ssize_t total = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i + prefetch_distance < count) __builtin_prefetch(at(i + prefetch_distance));
    PyObject* string = at(i);
    if (!PyUnicode_CheckExact(string) || !PyUnicode_IS_COMPACT_ASCII(string)) return std::nullopt;
    const Py_ssize_t size = PyUnicode_GET_LENGTH(string);
    if (size > INT32_MAX) return std::nullopt;
    lengths.data()[i] = static_cast<int32_t>(size);
    total += size;
  }
  nb::bytes joined = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, total));
  if (!joined.is_valid()) throw nb::python_error();
  char* to = PyBytes_AS_STRING(joined.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i + prefetch_distance < count) __builtin_prefetch(at(i + prefetch_distance));
    // The length of the string itself: another thread could change the array.
    const Py_ssize_t size = PyUnicode_GET_LENGTH(at(i));
    std::memcpy(to, PyUnicode_DATA(at(i)), size);
    to += size;
  }
  return joined;
}

void fill(InputVector<int32_t> tokens, std::optional<InputVector<int8_t>> loss, InputVector<int64_t> starts,
          InputVector<int32_t> lengths, InputVector<int64_t> offsets, std::optional<int32_t> separator,
          int32_t pad, OutputMatrix<int32_t> input_ids, OutputMatrix<int8_t> loss_mask,
          OutputMatrix<int32_t> segment_ids, OutputMatrix<int32_t> position_ids) {
  const int64_t rows = static_cast<int64_t>(input_ids.shape(0));
  const int64_t width = static_cast<int64_t>(input_ids.shape(1));
  const int64_t num_segments = static_cast<int64_t>(lengths.shape(0));
  const int64_t num_tokens = static_cast<int64_t>(tokens.shape(0));
  for (const auto* shape : {loss_mask.shape_ptr(), segment_ids.shape_ptr(), position_ids.shape_ptr()})
    if (static_cast<int64_t>(shape[0]) != rows || static_cast<int64_t>(shape[1]) != width)
      throw std::invalid_argument("the packed arrays must have the same shape");
  if (static_cast<int64_t>(offsets.shape(0)) != rows + 1 ||
      static_cast<int64_t>(starts.shape(0)) != num_segments)
    throw std::invalid_argument(
        "offsets must have one more entry than there are rows, starts as many as lengths");
  if (loss && static_cast<int64_t>(loss->shape(0)) != num_tokens)
    throw std::invalid_argument("loss and tokens must have the same length");
  const Segments segments{
      tokens.data(), loss ? loss->data() : nullptr, num_tokens, starts.data(), lengths.data(), num_segments,
      offsets.data()};
  const PackedRows packs{
      rows, width, input_ids.data(), loss_mask.data(), segment_ids.data(), position_ids.data()};
  nb::gil_scoped_release unlocked;
  fill_packs(segments, separator, pad, packs);
}

}  // namespace
}  // namespace data

void bind_data(nb::module_& module) {
  module.def("pack_lengths", &data::pack_lengths, nb::arg("lengths").noconvert(), nb::arg("capacity"),
             nb::arg("mode"), nb::arg("bins").noconvert(),
             "Write the bin of each sample to `bins` and return the number of bins.");
  module.def(
      "sort_random_keys", &data::sort_keys, nb::arg("keys").noconvert(), nb::arg("low_mask"),
      nb::arg("order").noconvert(), nb::arg("values").noconvert().none() = nb::none(),
      "Write the low bits of the keys to `order`, sorted by key. Reorder `values` in the same way. Overwrite "
      "the keys.");
  module.def("gather_runs", &data::gather, nb::arg("values").noconvert(), nb::arg("starts").noconvert(),
             nb::arg("ends").noconvert(), nb::arg("out").noconvert(),
             "Copy the runs `values[starts[i]:ends[i]]` to `out`, one after another.");
  module.def("concat_strings", &data::concat_strings, nb::arg("strings"), nb::arg("lengths").noconvert(),
             "Concatenate ASCII strings and write the length of each to `lengths`. Return None if one is not "
             "ASCII.");
  module.def("fill_packs", &data::fill, nb::arg("tokens").noconvert(), nb::arg("loss").noconvert().none(),
             nb::arg("starts").noconvert(), nb::arg("lengths").noconvert(), nb::arg("offsets").noconvert(),
             nb::arg("separator").none(), nb::arg("pad"), nb::arg("input_ids").noconvert(),
             nb::arg("loss_mask").noconvert(), nb::arg("segment_ids").noconvert(),
             nb::arg("position_ids").noconvert(),
             "Fill packed rows with segments of tokens. Row i has the segments from offsets[i] to offsets[i "
             "+ 1], with "
             "a separator between them if one is given.");
}

}  // namespace phalanx
