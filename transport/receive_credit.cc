#include "transport/receive_credit.h"

#include <new>
#include <utility>

#include "transport/frame.h"

namespace paceline {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

void FreeAligned::operator()(std::byte* p) const {
  ::operator delete[](p, std::align_val_t(kAlignment));
}

AlignedBytes AllocateAligned(size_t bytes) {
  return AlignedBytes(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(kAlignment))));
}

AlignedBytes BufferPool::Take() {
  {
    MutexLock lock(&mutex_);
    if (!free_.empty()) {
      AlignedBytes buffer = std::move(free_.back());
      free_.pop_back();
      return buffer;
    }
  }
  return AllocateAligned(kMaxPieceBytes);
}

void BufferPool::Give(AlignedBytes buffer) {
  MutexLock lock(&mutex_);
  if (free_.size() < max_free_) free_.push_back(std::move(buffer));
}

class ReceiveCredit::Held final : public Payload::Owner {
 public:
  Held(std::shared_ptr<ReceiveCredit> credit, uint32_t length, AlignedBytes buffer)
      : credit_(std::move(credit)), length_(length), buffer_(std::move(buffer)) {}
  ~Held() override { credit_->Return(length_, std::move(buffer_)); }

 private:
  const std::shared_ptr<ReceiveCredit> credit_;
  const uint32_t length_;
  AlignedBytes buffer_;
};

ReceiveCredit::ReceiveCredit(uint64_t max_bytes, std::shared_ptr<BufferPool> pool,
                             std::function<void()> wake)
    : max_bytes_(max_bytes), pool_(std::move(pool)), wake_(std::move(wake)) {}

// Small pieces get memory of their size: a sink that keeps many of them would otherwise hold far
// more than it is charged.
bool ReceiveCredit::IsPooled(uint32_t length) { return length > kMaxPieceBytes / 2; }

uint64_t ReceiveCredit::ChargeOf(uint32_t length) {
  return IsPooled(length) ? kMaxPieceBytes : (length + kAlignment - 1) / kAlignment * kAlignment;
}

bool ReceiveCredit::Reserve(uint32_t length) {
  const uint64_t charge = ChargeOf(length);
  const auto fits = [&] {
    const uint64_t out = outstanding_.load();
    return out == 0 || out + charge <= max_bytes_;
  };
  if (!fits()) {
    waiting_.store(true);
    if (!fits()) return false;  // whoever returns credit from here on sees `waiting_`
    waiting_.store(false);
  }
  outstanding_.fetch_add(charge);
  return true;
}

AlignedBytes ReceiveCredit::Buffer(uint32_t length) {
  return IsPooled(length) ? pool_->Take() : AllocateAligned(length);
}

Payload ReceiveCredit::Wrap(std::span<const std::byte> bytes, AlignedBytes buffer) {
  return Payload(bytes,
                 std::make_unique<Held>(shared_from_this(), static_cast<uint32_t>(bytes.size()),
                                        std::move(buffer)));
}

void ReceiveCredit::Return(uint32_t length, AlignedBytes buffer) {
  if (buffer != nullptr && IsPooled(length)) pool_->Give(std::move(buffer));
  outstanding_.fetch_sub(ChargeOf(length));
  if (waiting_.exchange(false)) wake_();
}

}  // namespace paceline
