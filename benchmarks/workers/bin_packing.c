/* Best-fit decreasing bin packing, as a baseline for Phalanx's packing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Writes the bin of each sample to bins. Lengths must be between 1 and capacity.
   Returns the number of bins, or -1 if there is not enough memory.
   Open bins are in linked lists, one for each remaining capacity. A bitmap marks the lists that are not empty, so
   that the bin with the smallest sufficient capacity is found by scanning a few words. */
int64_t best_fit_decreasing(const int32_t *lengths, int64_t count, int32_t capacity, int32_t *bins) {
  const int32_t words = capacity / 64 + 1;
  int64_t *starts = calloc((size_t)capacity + 2, sizeof *starts);
  int32_t *order = malloc((size_t)(count ? count : 1) * sizeof *order);
  int32_t *next = malloc((size_t)(count ? count : 1) * sizeof *next);
  int32_t *heads = malloc(((size_t)capacity + 1) * sizeof *heads);
  uint64_t *open = calloc((size_t)words, sizeof *open);
  int64_t used = -1;
  if (starts && order && next && heads && open) {
    /* Counting sort in descending order of length. */
    for (int64_t i = 0; i < count; ++i) ++starts[capacity - lengths[i] + 1];
    for (int32_t key = 0; key <= capacity; ++key) starts[key + 1] += starts[key];
    for (int64_t i = 0; i < count; ++i) order[starts[capacity - lengths[i]]++] = (int32_t)i;
    memset(heads, 0xff, ((size_t)capacity + 1) * sizeof *heads);
    used = 0;
    /* After the sort, starts[key] is the end of the samples with that key. */
    for (int32_t length = capacity, i = 0; length > 0; --length)
      for (; i < starts[capacity - length]; ++i) {
        int32_t room = -1, word = length / 64, bin;
        uint64_t found = open[word] & (~UINT64_C(0) << (length % 64));
        while (!found && ++word < words) found = open[word];
        if (found) {
          room = word * 64 + __builtin_ctzll(found);
          bin = heads[room];
          heads[room] = next[bin];
          if (heads[room] < 0) open[room / 64] &= ~(UINT64_C(1) << (room % 64));
        } else {
          room = capacity;
          bin = (int32_t)used++;
        }
        bins[order[i]] = bin;
        const int32_t left = room - length;
        next[bin] = heads[left];
        heads[left] = bin;
        if (left) open[left / 64] |= UINT64_C(1) << (left % 64);
      }
  }
  free(starts), free(order), free(next), free(heads), free(open);
  return used;
}
