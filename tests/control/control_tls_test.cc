// Both ends prove themselves with certificates, and nobody else gets in.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "control/grpc/client.h"
#include "control/grpc/samples_for_test.h"
#include "control/grpc/server.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

class AnsweringService final : public ControlService {
 public:
  void Join(JoinRequest, std::function<void(absl::StatusOr<JoinReply>)> done) override {
    done(absl::UnimplementedError("not asked here"));
  }
  void Call(NodeRef, NodeRequest, std::function<void(absl::StatusOr<NodeReply>)> done) override {
    done(NodeReply(Empty{}));
  }
  void Operate(OperatorRequest, std::function<void(absl::StatusOr<OperatorReply>)> done) override {
    done(OperatorReply(samples::Cluster()));
  }
  void OpenWatch(NodeRef, std::shared_ptr<DirectiveSink>) override {}
  void CloseWatch(NodeRef, const DirectiveSink*) override {}
};

// Writes a key and a certificate for 127.0.0.1 that it signs itself: its own CA.
GrpcSecurity MakeIdentity(const fs::path& directory, const std::string& name) {
  const GrpcSecurity paths{directory / (name + ".crt"), directory / (name + ".key"),
                           directory / (name + ".crt")};
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate, subject);
  for (const auto& [nid, value] : {std::pair(NID_subject_alt_name, "IP:127.0.0.1"),
                                   std::pair(NID_basic_constraints, "critical,CA:TRUE")}) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  EXPECT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  FILE* file = std::fopen(paths.certificate.c_str(), "w");
  EXPECT_EQ(PEM_write_X509(file, certificate), 1);
  std::fclose(file);
  file = std::fopen(paths.key.c_str(), "w");
  EXPECT_EQ(PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  std::fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return paths;
}

class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "paceline-tls-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    ours_ = MakeIdentity(directory_, "ours");
    auto server = GrpcControlServer::Start("127.0.0.1:0", ours_, &service_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void TearDown() override {
    server_.reset();
    fs::remove_all(directory_);
  }
  absl::Status AskAs(const GrpcSecurity& security) {
    auto client = MakeGrpcControlClient(server_->address(), security);
    if (!client.ok()) return client.status();
    return (*client)->Operate(StatusQuery{}, Seconds(10)).status();
  }

  fs::path directory_;
  GrpcSecurity ours_;
  AnsweringService service_;
  std::unique_ptr<GrpcControlServer> server_;
};

TEST_F(TlsTest, ACertificateOfTheSameAuthorityGetsIn) {
  const absl::Status status = AskAs(ours_);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(TlsTest, PlaintextDoesNot) { EXPECT_FALSE(AskAs({}).ok()); }

TEST_F(TlsTest, ACertificateOfAnotherAuthorityDoesNot) {
  GrpcSecurity stranger = MakeIdentity(directory_, "stranger");
  stranger.ca = ours_.ca;  // trusts us, which we do not return
  EXPECT_FALSE(AskAs(stranger).ok());
}

TEST_F(TlsTest, AClientDoesNotTalkToASchedulerItDoesNotTrust) {
  const GrpcSecurity other = MakeIdentity(directory_, "other");
  EXPECT_FALSE(AskAs({ours_.certificate, ours_.key, other.ca}).ok());
}

}  // namespace
}  // namespace paceline
