// A declarative table of configuration keys, bound to the struct that they fill. One row says all
// there is about a key: its path in the file, its flag, its variable, its text form and its doc.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/environment.h"
#include "plan/job_spec.h"

namespace paceline {

// What a value looks like in YAML besides its text form.
enum class KeyShape : uint8_t {
  kScalar,
  kList,      // [3, 1]               text: "3,1"
  kMap,       // {rack: r1}           text: "rack=r1"
  kNamed,     // {name: sgd, a: 0.9}  text: "sgd:a=0.9"
  kNamedMap,  // {"w*": {name: ...}}  text: "w*=fp16;b*=none"
};

struct Key {
  std::string path;      // in the file: "tls.cert", "job.epochs"
  std::string flag;      // "--tls-cert", "--epochs" (without "job"); empty: none
  std::string variable;  // "PACELINE_TLS_CERT", "PACELINE_EPOCHS"; empty: none
  std::string allowed;   // "1 .. 65535", shown in errors, help and docs
  std::string doc;       // one line
  KeyShape shape = KeyShape::kScalar;
  std::string
      implied;  // what the flag means without a value ("true" for a switch); empty: needs one
  // Sets the value from its text; the status says only what is wrong with it.
  std::function<absl::Status(std::string_view text)> set;
  std::function<std::string()> get;
  std::string origin = "default";
};

class KeyTable {
 public:
  // Rows. `field` must outlive the table; its value at the time is the default.
  void Text(std::string path, std::string doc, std::string* field);
  void OneOf(std::string path, std::string doc, std::vector<std::string> allowed,
             std::string* field);
  // Named letters: [a-zA-Z0-9._-]{1,128}; empty is left as "not set".
  void Name(std::string path, std::string doc, std::string* field);
  void Address(std::string path, std::string doc, bool port_optional, std::string* field);
  void Switch(std::string path, std::string doc, bool* field);
  void Number(std::string path, std::string doc, uint64_t low, uint64_t high, uint64_t* field);
  void Number(std::string path, std::string doc, uint32_t low, uint32_t high, uint32_t* field);
  void Real(std::string path, std::string doc, double low, double high, double* field);
  // 65536, 64KiB, 4MiB, 16GiB.
  void ByteCount(std::string path, std::string doc, uint64_t low, uint64_t high, uint64_t* field);
  void Labels(std::string path, std::string doc, std::map<std::string, std::string>* field);
  void Named(std::string path, std::string doc, NamedSpec* field);
  void NamedMap(std::string path, std::string doc, std::map<std::string, NamedSpec>* field);
  // Fills flag and variable from the path where they are empty.
  Key& Add(Key key);
  // Takes over the rows of another table, whose fields stay where they are.
  void Append(const KeyTable& other);
  // Flag and variable of the row just added, where they do not follow from the path.
  void Spelled(std::string flag, std::string variable);

  const std::vector<Key>& keys() const { return keys_; }
  std::vector<Key>& keys() { return keys_; }
  Key* Find(std::string_view path);
  // Where the value of a key came from, as errors say it: "flag --listen".
  std::string OriginOf(std::string_view path) const;

  // Each names key, value, allowed values and origin in its error.
  absl::Status LoadFile(const std::string& path);
  absl::Status LoadText(const std::string& yaml, const std::string& file_name);
  absl::Status LoadEnvironment(const Environment& env);
  absl::Status Set(Key& key, std::string_view text, std::string origin);
  // `path=value` of --set; `path` may leave "job." out.
  absl::Status LoadAssignment(std::string_view assignment);

  // The effective configuration as YAML that loads to the same, each value with its origin.
  std::string ToYaml() const;

  // The known path nearest to `path` by edit distance, or empty when none is near.
  std::string Nearest(std::string_view path) const;

 private:
  std::vector<Key> keys_;
};

// "sgd:momentum=0.9,learning_rate=0.1" and back.
absl::StatusOr<NamedSpec> ParseNamedSpec(std::string_view text);
std::string ToText(const NamedSpec& spec);

}  // namespace paceline
