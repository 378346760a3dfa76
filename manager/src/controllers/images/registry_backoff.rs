//! Whether a registry is reached, and when it is asked again if it is not. One question is asked then, and the others
//! have its failure.

use std::time::Duration;

use tokio::time::Instant;
use warren_api::images::{Reachability, ResolveFailure};
use warren_control::Backoff;

/// The first back-off; doubles with each failure. Up to a half is chosen at random.
const MIN_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// How long the others have the earlier failure while the registry is asked again. That takes less.
const PROBE_TIME: Duration = Duration::from_secs(40);

/// Whether a question is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is asked.
    Request,
    /// It is asked first after a back-off.
    Probe,
    /// It is not asked, and has this failure of the registry.
    Refused(ResolveFailure),
}

/// What is known of a registry.
#[derive(Debug, Default)]
pub(super) struct RegistryBackoff {
    outage: Option<Outage>,
    answered_at: Option<Instant>,
}

/// A registry that is not reached.
#[derive(Debug)]
struct Outage {
    failure: ResolveFailure,
    backoff: Backoff,
    until: Instant,
}

impl RegistryBackoff {
    /// The failure that questions have now; `None` if one may be asked.
    pub fn failure(&self, now: Instant) -> Option<&ResolveFailure> {
        self.outage.as_ref().filter(|outage| now < outage.until).map(|outage| &outage.failure)
    }

    /// Whether the last attempt to reach it failed.
    pub fn is_off(&self) -> bool {
        self.outage.is_some()
    }

    /// When the last answer came.
    pub fn answered_at(&self) -> Option<Instant> {
        self.answered_at
    }

    /// Whether a question is asked now. After [`Admission::Probe`] the others are refused until its answer is recorded.
    pub fn admit(&mut self, now: Instant) -> Admission {
        match &mut self.outage {
            None => Admission::Request,
            Some(outage) if now < outage.until => Admission::Refused(outage.failure.clone()),
            Some(outage) => {
                outage.until = now + PROBE_TIME;
                Admission::Probe
            }
        }
    }

    /// The caller with [`Admission::Probe`] stopped waiting: the next question is a probe too.
    pub fn abandon_probe(&mut self, now: Instant) {
        if let Some(outage) = &mut self.outage {
            outage.until = now;
        }
    }

    /// Records the answer to a question that was admitted at `began`; `chance` selects the back-off. Returns whether
    /// the registry is reached again.
    pub fn record(
        &mut self,
        is_probe: bool,
        answer: Result<(), &ResolveFailure>,
        began: Instant,
        now: Instant,
        chance: u64,
    ) -> bool {
        let Some(failure) = answer.err().filter(|failure| failure.registry != Reachability::Reached) else {
            self.answered_at = Some(now);
            return self.outage.take().is_some();
        };
        if self.answered_at.is_some_and(|answered_at| began < answered_at) {
            return false;
        }
        match (&failure.registry, &mut self.outage) {
            (Reachability::Unreachable { why }, outage) if is_probe || outage.is_none() => {
                let earlier = outage.take().map(|outage| outage.backoff);
                let mut backoff = earlier.unwrap_or_else(|| Backoff::new(MIN_DELAY, MAX_DELAY));
                let until = now + backoff.next_delay(chance);
                let failure = ResolveFailure { reason: why.clone(), ..failure.clone() };
                *outage = Some(Outage { failure, backoff, until });
            }
            (Reachability::Gateway, Some(outage)) if is_probe => {
                outage.until = now + outage.backoff.next_delay(chance);
            }
            // The next question is a probe too: who waits for the registry is woken by its answer only.
            (Reachability::Unknown, Some(outage)) if is_probe => outage.until = now,
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(why: &str) -> ResolveFailure {
        let registry = Reachability::Unreachable { why: why.to_owned() };
        ResolveFailure { reason: why.to_owned(), is_transient: true, registry }
    }

    fn failure(registry: Reachability) -> ResolveFailure {
        ResolveFailure { reason: "no".to_owned(), is_transient: false, registry }
    }

    /// A registry, and the seconds since it was first asked.
    struct BackoffFixture {
        registry: RegistryBackoff,
        began: Instant,
    }

    impl BackoffFixture {
        fn new() -> Self {
            Self { registry: RegistryBackoff::default(), began: Instant::now() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.began + Duration::from_secs(seconds)
        }

        fn admit(&mut self, seconds: u64) -> Admission {
            self.registry.admit(self.at(seconds))
        }

        /// Records the answer to a question that was asked at the same moment, with the shortest back-off.
        fn record(&mut self, admission: &Admission, answer: Result<(), &ResolveFailure>, at: u64) -> bool {
            self.record_late(admission, answer, at, at)
        }

        fn record_late(
            &mut self,
            admission: &Admission,
            answer: Result<(), &ResolveFailure>,
            began: u64,
            now: u64,
        ) -> bool {
            let (began, now) = (self.at(began), self.at(now));
            self.registry.record(*admission == Admission::Probe, answer, began, now, 0)
        }
    }

    #[test]
    fn one_question_is_asked_after_each_backoff() {
        let mut it = BackoffFixture::new();
        let refused = unreachable("no route");
        assert_eq!(it.admit(0), Admission::Request);
        it.record(&Admission::Request, Err(&refused), 0);
        let (mut now, mut delays) = (0, Vec::new());
        for _ in 0..7 {
            assert!(it.registry.is_off());
            let asked = (now..).find(|second| it.registry.failure(it.at(*second)).is_none()).unwrap();
            assert_eq!(it.admit(asked - 1), Admission::Refused(refused.clone()));
            assert_eq!(it.admit(asked), Admission::Probe);
            assert_eq!(it.admit(asked + 10), Admission::Refused(refused.clone()), "while it is asked");
            delays.push(asked - now);
            now = asked + 20;
            assert!(!it.record_late(&Admission::Probe, Err(&refused), asked, now));
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn backoff_is_chosen_at_random() {
        let mut it = BackoffFixture::new();
        let now = it.at(0);
        it.registry.record(false, Err(&unreachable("no route")), now, now, u64::MAX);
        assert!(matches!(it.admit(1), Admission::Refused(_)));
        assert_eq!(it.admit(2), Admission::Probe);
    }

    #[test]
    fn any_answer_ends_the_outage() {
        for answer in [Ok(()), Err(failure(Reachability::Reached))] {
            let mut it = BackoffFixture::new();
            it.record(&Admission::Request, Err(&unreachable("no route")), 0);
            assert_eq!(it.admit(1), Admission::Probe);
            assert!(it.record(&Admission::Probe, answer.as_ref().copied(), 2));
            assert!(!it.record(&Admission::Request, answer.as_ref().copied(), 2), "the second time");
            assert_eq!(it.admit(2), Admission::Request);
            // The next outage begins with the shortest back-off.
            it.record(&Admission::Request, Err(&unreachable("no route")), 3);
            assert_eq!(it.admit(4), Admission::Probe);
        }
    }

    #[test]
    fn answer_about_one_image_concerns_no_other() {
        let mut it = BackoffFixture::new();
        for registry in [Reachability::Reached, Reachability::Gateway, Reachability::Unknown] {
            assert!(!it.record(&Admission::Request, Err(&failure(registry)), 0));
            assert_eq!(it.admit(0), Admission::Request);
        }
    }

    #[test]
    fn gateway_neither_begins_nor_ends_an_outage() {
        let mut it = BackoffFixture::new();
        let refused = unreachable("no route");
        it.record(&Admission::Request, Err(&refused), 0);
        assert_eq!(it.admit(1), Admission::Probe);
        assert!(!it.record(&Admission::Probe, Err(&failure(Reachability::Gateway)), 1));
        assert_eq!(it.admit(2), Admission::Refused(refused));
        assert_eq!(it.admit(3), Admission::Probe, "after the next back-off");
    }

    #[test]
    fn questions_that_were_asked_before_do_not_lengthen_the_backoff() {
        let mut it = BackoffFixture::new();
        for reason in ["no route", "refused"] {
            it.record(&Admission::Request, Err(&unreachable(reason)), 0);
        }
        assert_eq!(it.admit(0), Admission::Refused(unreachable("no route")));
        assert_eq!(it.admit(1), Admission::Probe);
    }

    #[test]
    fn question_that_was_asked_before_the_last_answer_begins_no_outage() {
        let mut it = BackoffFixture::new();
        let refused = unreachable("no route");
        it.record(&Admission::Request, Ok(()), 5);
        it.record_late(&Admission::Request, Err(&refused), 4, 9);
        assert_eq!(it.admit(9), Admission::Request);
        it.record_late(&Admission::Request, Err(&refused), 6, 9);
        assert_eq!(it.admit(9), Admission::Refused(refused));
    }

    #[test]
    fn probe_without_a_result_is_followed_by_another() {
        let mut it = BackoffFixture::new();
        it.record(&Admission::Request, Err(&unreachable("no route")), 0);
        let unknown = failure(Reachability::Unknown);
        it.record(&Admission::Request, Err(&unknown), 0);
        assert!(matches!(it.admit(0), Admission::Refused(_)), "it was no probe");
        assert_eq!(it.admit(1), Admission::Probe);
        assert!(!it.record(&Admission::Probe, Err(&unknown), 2), "it may not be reached");
        assert_eq!(it.admit(2), Admission::Probe);
        assert!(it.record(&Admission::Probe, Ok(()), 2));
    }

    #[test]
    fn probe_whose_caller_ended_is_followed_by_another() {
        let mut it = BackoffFixture::new();
        let refused = unreachable("no route");
        it.record(&Admission::Request, Err(&refused), 0);
        assert_eq!(it.admit(1), Admission::Probe);
        assert_eq!(it.admit(40), Admission::Refused(refused));
        assert_eq!(it.admit(41), Admission::Probe);
    }

    #[test]
    fn others_have_the_sentence_of_the_registry() {
        let mut it = BackoffFixture::new();
        let reason = "the signature was not checked: no route".to_owned();
        let of_image = ResolveFailure { reason, ..unreachable("no route") };
        it.record(&Admission::Request, Err(&of_image), 0);
        assert_eq!(it.admit(0), Admission::Refused(unreachable("no route")));
    }
}
