#include "plan/chunking.h"

#include <algorithm>

#include "common/base/check.h"

namespace paceline {

std::vector<ChunkRange> CutIntoChunks(const TensorSpec& spec, uint64_t chunk_bytes) {
  PACELINE_CHECK(chunk_bytes >= 64 && chunk_bytes % 64 == 0);
  const uint64_t elements = spec.elements();
  const uint64_t per_chunk = chunk_bytes / SizeOf(spec.dtype);
  if (spec.whole || elements <= per_chunk) return {{0, elements}};
  std::vector<ChunkRange> chunks;
  chunks.reserve((elements + per_chunk - 1) / per_chunk);
  for (uint64_t begin = 0; begin < elements; begin += per_chunk) {
    chunks.push_back({begin, std::min(per_chunk, elements - begin)});
  }
  return chunks;
}

}  // namespace paceline
