#include "trainer/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace paceline {
namespace {

constexpr uint32_t kPixels = 28 * 28;
constexpr uint32_t kClasses = 10;
// Of the training set's pixels; inputs around 0 train in half the steps.
constexpr float kMean = 0.2860f;
constexpr float kDeviation = 0.3530f;
constexpr uint32_t kTrainFileSamples = 60'000;
constexpr uint32_t kTrainSamples = 55'000;
constexpr uint32_t kTestSamples = 10'000;

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what,
                                          "; reinstall the Debian package dataset-fashion-mnist or "
                                          "give another directory with --dataset"));
}

class GzipFile {
 public:
  static absl::StatusOr<GzipFile> Open(const std::string& path) {
    errno = 0;
    gzFile file = gzopen(path.c_str(), "rbe");
    if (file == nullptr) {
      if (errno == ENOENT || errno == ENOTDIR) {
        return absl::NotFoundError(
            absl::StrCat(path,
                         ": no such file; install the Debian package dataset-fashion-mnist "
                         "or give another directory with --dataset"));
      }
      return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
    }
    return GzipFile(path, file);
  }

  // Exactly out.size() bytes.
  absl::Status Read(std::span<uint8_t> out) {
    const int got = gzread(file_.get(), out.data(), static_cast<unsigned>(out.size()));
    if (got < 0) return Damaged(path_, absl::StrCat("cannot be unpacked: ", Error()));
    if (static_cast<size_t>(got) != out.size()) return Damaged(path_, "ends early");
    return absl::OkStatus();
  }

  // Nothing may follow, and the checksum of the whole file must hold (zlib compares it at the end).
  absl::Status ExpectEnd() {
    uint8_t byte = 0;
    const int got = gzread(file_.get(), &byte, 1);
    if (got < 0) return Damaged(path_, absl::StrCat("cannot be unpacked: ", Error()));
    if (got > 0) return Damaged(path_, "is longer than its header says");
    int code = Z_OK;  // Z_BUF_ERROR when the file ends within gzip's own trailer
    gzerror(file_.get(), &code);
    if (code != Z_OK) return Damaged(path_, "ends early");
    if (gzdirect(file_.get()) != 0) return Damaged(path_, "is not a gzip file");
    return absl::OkStatus();
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  GzipFile(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}

  std::string Error() const {
    int code = 0;
    return gzerror(file_.get(), &code);
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

absl::StatusOr<Dataset> ReadPart(const std::string& directory, const std::string& part,
                                 uint32_t samples) {
  Dataset out;
  out.features = kPixels;
  out.classes = kClasses;
  out.mean = kMean;
  out.deviation = kDeviation;
  PACELINE_ASSIGN_OR_RETURN(
      out.images,
      ReadIdx(absl::StrCat(directory, "/", part, "-images-idx3-ubyte.gz"), {samples, 28, 28}));
  const std::string labels_path = absl::StrCat(directory, "/", part, "-labels-idx1-ubyte.gz");
  PACELINE_ASSIGN_OR_RETURN(out.labels, ReadIdx(labels_path, {samples}));
  for (uint32_t i = 0; i < samples; ++i) {
    if (out.labels[i] >= kClasses) {
      return Damaged(labels_path, absl::StrCat("label ", out.labels[i], " of sample ", i,
                                               " is not in 0..", kClasses - 1));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadIdx(const std::string& path,
                                             const std::vector<uint32_t>& dimensions) {
  PACELINE_CHECK(!dimensions.empty() && dimensions.size() <= 255);
  PACELINE_ASSIGN_OR_RETURN(GzipFile file, GzipFile::Open(path));
  std::vector<uint8_t> header(4 + 4 * dimensions.size());
  PACELINE_RETURN_IF_ERROR(file.Read(header));
  constexpr uint8_t kUnsignedByte = 8;
  if (header[0] != 0 || header[1] != 0 || header[2] != kUnsignedByte ||
      header[3] != dimensions.size()) {
    return Damaged(
        path, absl::StrCat("is not an idx file of bytes in ", dimensions.size(), " dimensions"));
  }
  size_t bytes = 1;
  for (size_t d = 0; d < dimensions.size(); ++d) {
    const uint32_t found = BigEndian(&header[4 + 4 * d]);
    if (found != dimensions[d]) {
      return Damaged(path,
                     absl::StrCat("dimension ", d, " is ", found, ", expected ", dimensions[d]));
    }
    bytes *= found;
  }
  std::vector<uint8_t> values(bytes);
  PACELINE_RETURN_IF_ERROR(file.Read(values));
  PACELINE_RETURN_IF_ERROR(file.ExpectEnd());
  return values;
}

Dataset Slice(const Dataset& all, uint32_t begin, uint32_t end) {
  PACELINE_CHECK(begin <= end && end <= all.size());
  Dataset out;
  out.features = all.features;
  out.classes = all.classes;
  out.mean = all.mean;
  out.deviation = all.deviation;
  out.images.assign(all.images.begin() + static_cast<ptrdiff_t>(size_t{begin} * all.features),
                    all.images.begin() + static_cast<ptrdiff_t>(size_t{end} * all.features));
  out.labels.assign(all.labels.begin() + begin, all.labels.begin() + end);
  return out;
}

absl::StatusOr<DatasetSplit> LoadFashionMnist(const std::string& directory) {
  PACELINE_ASSIGN_OR_RETURN(const Dataset all, ReadPart(directory, "train", kTrainFileSamples));
  DatasetSplit split;
  split.train = Slice(all, 0, kTrainSamples);
  split.validation = Slice(all, kTrainSamples, kTrainFileSamples);
  PACELINE_ASSIGN_OR_RETURN(split.test, ReadPart(directory, "t10k", kTestSamples));
  return split;
}

}  // namespace paceline
