//! Answers of upstreams for as long as they may be used.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hickory_server::proto::op::{Message, ResponseCode};
use hickory_server::proto::rr::RData;
use tokio::time::Instant;

use super::ForwardKey;

/// The longest time for which an answer is used: nobody waits longer for a change than its owner intended, or this.
const MAX_TTL: Duration = Duration::from_secs(600);
/// The longest time for which a name is taken as absent.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(30);
/// The time for which no upstream is asked again after all failed (RFC 9520).
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Larger answers are not kept.
const MAX_MESSAGE_SIZE: usize = 4096;
/// All kept answers together, with what their keys take.
const MAX_TOTAL_SIZE: usize = 4 << 20;
/// An estimate of the memory of an entry beside the bytes of its message.
const ENTRY_SIZE: usize = 512;

/// What the upstreams answered to a question.
#[derive(Debug)]
pub(super) struct StoredReply {
    /// As it arrived; `None` if all failed.
    bytes: Option<Vec<u8>>,
    stored: Instant,
    expires: Instant,
}

impl StoredReply {
    pub(super) fn new(found: Option<(Vec<u8>, &Message)>, now: Instant) -> Self {
        let (bytes, ttl) = match found {
            Some((bytes, message)) => (Some(bytes), time_to_live(message)),
            None => (None, FAILURE_TTL),
        };
        Self { bytes, stored: now, expires: now + ttl }
    }

    /// The message with the time that is left of its records.
    pub(super) fn message(&self, now: Instant) -> Option<Message> {
        let age = now.duration_since(self.stored).as_secs() as u32;
        let mut message = Message::from_vec(self.bytes.as_deref()?).ok()?;
        let sections = [&mut message.answers, &mut message.authorities, &mut message.additionals];
        for record in sections.into_iter().flatten() {
            record.ttl = record.ttl.min(MAX_TTL.as_secs() as u32).saturating_sub(age);
        }
        Some(message)
    }

    fn size(&self) -> usize {
        ENTRY_SIZE + self.bytes.as_ref().map_or(0, Vec::len)
    }
}

/// For how long an answer may be used.
fn time_to_live(message: &Message) -> Duration {
    let seconds = |ttl: u32| Duration::from_secs(ttl.into());
    let positive = message.answers.iter().map(|record| seconds(record.ttl)).min();
    let is_negative = message.answers.is_empty() || message.response_code == ResponseCode::NXDomain;
    if !is_negative {
        return positive.unwrap_or_default().min(MAX_TTL);
    }
    // RFC 2308: an absence without the record that limits it is not cached.
    let negative = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(authority) => Some(seconds(record.ttl.min(authority.minimum))),
        _ => None,
    });
    let negative = negative.unwrap_or_default().min(MAX_NEGATIVE_TTL);
    positive.map_or(negative, |positive| positive.min(negative))
}

/// The newest answers, as many as fit.
#[derive(Debug, Default)]
pub(super) struct ReplyCache {
    replies: HashMap<Arc<ForwardKey>, Arc<StoredReply>>,
    /// In the order in which they were stored, with those that were replaced.
    order: VecDeque<(Arc<ForwardKey>, Arc<StoredReply>)>,
    /// Of all in `order`.
    size: usize,
}

impl ReplyCache {
    pub(super) fn get(&mut self, key: &ForwardKey, now: Instant) -> Option<Arc<StoredReply>> {
        let found = self.replies.get(key)?;
        if found.expires > now {
            return Some(Arc::clone(found));
        }
        self.replies.remove(key);
        None
    }

    pub(super) fn insert(&mut self, key: Arc<ForwardKey>, reply: Arc<StoredReply>) {
        let size = reply.size();
        if reply.expires == reply.stored || size > ENTRY_SIZE + MAX_MESSAGE_SIZE {
            return;
        }
        self.size += size;
        self.order.push_back((Arc::clone(&key), Arc::clone(&reply)));
        self.replies.insert(key, reply);
        while self.size > MAX_TOTAL_SIZE {
            let Some((key, oldest)) = self.order.pop_front() else { break };
            self.size -= oldest.size();
            if self.replies.get(&key).is_some_and(|kept| Arc::ptr_eq(kept, &oldest)) {
                self.replies.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_server::proto::op::{MessageType, OpCode};
    use hickory_server::proto::rr::rdata::{A, SOA};
    use hickory_server::proto::rr::{LowerName, Name, Record, RecordType};

    use super::*;

    fn key(name: &str) -> Arc<ForwardKey> {
        let name = LowerName::new(&Name::from_ascii(name).unwrap());
        let (record, servers) = (RecordType::A, Arc::from([]));
        Arc::new(ForwardKey { name, record, dnssec_ok: false, checking_disabled: false, servers })
    }

    fn message(answers: &[u32], authority: Option<(u32, u32)>, code: ResponseCode) -> Message {
        let mut message = Message::new(1, MessageType::Response, OpCode::Query);
        message.metadata.response_code = code;
        let record = |ttl, data| Record::from_rdata(Name::root(), ttl, data);
        for ttl in answers {
            message.add_answer(record(*ttl, RData::A(A::new(192, 0, 2, 1))));
        }
        if let Some((ttl, minimum)) = authority {
            let data = SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, minimum);
            message.add_authority(record(ttl, RData::SOA(data)));
        }
        message
    }

    fn stored(message: &Message, now: Instant) -> Arc<StoredReply> {
        Arc::new(StoredReply::new(Some((message.to_vec().unwrap(), message)), now))
    }

    #[test]
    fn time_to_live_is_bounded() {
        let (yes, no) = (ResponseCode::NoError, ResponseCode::NXDomain);
        for (answers, authority, code, seconds) in [
            (&[300, 20][..], None, yes, 20),
            (&[86_400], None, yes, 600),
            (&[0, 300], None, yes, 0),
            (&[], Some((60, 10)), no, 10),
            (&[], Some((5, 3600)), yes, 5),
            (&[], Some((3600, 3600)), no, 30),
            (&[], None, no, 0),
            (&[3], Some((60, 60)), no, 3),
        ] {
            let found = time_to_live(&message(answers, authority, code));
            assert_eq!(found, Duration::from_secs(seconds), "{answers:?} {authority:?} {code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reply_ages_and_expires() {
        let (mut cache, now) = (ReplyCache::default(), Instant::now());
        cache.insert(key("a."), stored(&message(&[20], None, ResponseCode::NoError), now));
        cache.insert(key("b."), Arc::new(StoredReply::new(None, now)));
        cache.insert(key("c."), stored(&message(&[0], None, ResponseCode::NoError), now));
        assert!(cache.get(&key("c."), now).is_none(), "a reply without a time to live is not kept");
        assert!(cache.get(&key("b."), now).unwrap().message(now).is_none());
        let later = now + Duration::from_secs(19);
        assert!(cache.get(&key("b."), later).is_none());
        let found = cache.get(&key("A."), later).unwrap().message(later).unwrap();
        assert_eq!(found.answers[0].ttl, 1);
        assert!(cache.get(&key("a."), now + Duration::from_secs(20)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_replies_leave_a_full_cache() {
        let (mut cache, now) = (ReplyCache::default(), Instant::now());
        let message = message(&[600], None, ResponseCode::NoError);
        for number in 0..20_000 {
            cache.insert(key(&format!("n{}.", number % 10_000)), stored(&message, now));
            assert!(cache.size <= MAX_TOTAL_SIZE);
        }
        let kept = cache.order.len();
        assert!((5_000..9_000).contains(&kept), "{kept}");
        assert_eq!(cache.replies.len(), kept);
        assert!(cache.get(&key("n9999."), now).is_some() && cache.get(&key("n0."), now).is_none());
        for _ in 0..20_000 {
            cache.insert(key("same."), stored(&message, now));
        }
        assert_eq!((cache.replies.len(), cache.order.len()), (1, kept));
    }
}
