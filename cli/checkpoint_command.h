// `pacelinectl checkpoint`: takes checkpoints of a running job, and looks at those on disk.
// Thread rule: main thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/text_table.h"
#include "common/checkpoint/directory.h"

namespace paceline {

// What is asked of files; needs no scheduler. `json` prints one JSON document. The text is what
// goes to stdout also when the status is an error (verify lists what is good and what is not).
struct CheckpointText {
  std::string text;
  absl::Status status;
};
CheckpointText ListCheckpointsText(const std::string& directory, bool json, const Style& style);
CheckpointText VerifyCheckpointsText(const std::string& directory, bool json, const Style& style);
CheckpointText ShowCheckpointText(const std::string& directory, bool json, const Style& style);

}  // namespace paceline
