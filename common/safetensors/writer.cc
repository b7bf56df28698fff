#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "common/base/status.h"
#include "common/safetensors/atomic_file.h"
#include "common/safetensors/header.h"
#include "common/safetensors/safetensors.h"

namespace paceline {
namespace {

static_assert(std::endian::native == std::endian::little,
              "arrays are written as they are in memory");

absl::Status CheckView(const SafetensorsView& view) {
  if (view.name.empty() || view.name == "__metadata__") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", view.name, "' cannot be a tensor's name in a safetensors file"));
  }
  const auto bytes = safetensors::ArrayBytes(view.dtype, view.shape);
  if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("tensor '", view.name, "'"));
  if (*bytes != view.data.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", view.name, "': ", view.data.size(),
                                                   " bytes given, the shape needs ", *bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string>& metadata,
                              std::span<const SafetensorsView> tensors,
                              const std::stop_token& stop) {
  std::vector<const SafetensorsView*> order;
  std::set<std::string_view> names;
  for (const SafetensorsView& view : tensors) {
    if (auto status = CheckView(view); !status.ok()) return Annotate(status, path);
    if (!names.insert(view.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", view.name, "' is given twice"));
    }
    order.push_back(&view);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(SizeOf(b->dtype), std::string_view(a->name)) <
           std::pair(SizeOf(a->dtype), std::string_view(b->name));
  });
  auto header = safetensors::MakeHeader(metadata, order);
  if (!header.ok()) return Annotate(header.status(), path);
  if (header->size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the header needs ", header->size(),
                                                   " bytes, at most ", kMaxSafetensorsHeaderBytes,
                                                   " are allowed"));
  }

  AtomicFile file(path);
  PACELINE_RETURN_IF_ERROR(file.Open());
  const uint64_t header_bytes = header->size();
  PACELINE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(&header_bytes, 1))));
  PACELINE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(*header))));
  for (const SafetensorsView* view : order) {
    if (stop.stop_requested()) {
      return absl::CancelledError(absl::StrCat(path, ": stopped while it was written"));
    }
    PACELINE_RETURN_IF_ERROR(file.Append(view->data));
  }
  return file.Commit();
}

}  // namespace paceline
