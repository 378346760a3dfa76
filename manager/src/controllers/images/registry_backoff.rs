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
    /// The image of the last question without an answer, unless another one got an answer after it.
    silent_image: Option<String>,
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

    /// Records the answer to an admitted question about `image`; `chance` selects the back-off. Returns whether the
    /// registry is reached again.
    pub fn record(
        &mut self,
        is_probe: bool,
        image: &str,
        answer: Result<(), &ResolveFailure>,
        now: Instant,
        chance: u64,
    ) -> bool {
        let Some(failure) = answer.err().filter(|failure| failure.registry != Reachability::Reached) else {
            self.silent_image = None;
            return self.outage.take().is_some();
        };
        let Reachability::Unreachable { why, is_silent } = &failure.registry else {
            if let Some(outage) = self.outage.as_mut().filter(|_| is_probe) {
                outage.until = now;
            }
            return false;
        };
        let is_known = self.outage.is_some();
        if is_known && !is_probe {
            // It was asked before that was known.
            return false;
        }
        if *is_silent && !is_known {
            let earlier = self.silent_image.replace(image.to_owned());
            if earlier.is_none_or(|earlier| earlier == image) {
                return false;
            }
        }
        let earlier = self.outage.take().map(|outage| outage.backoff);
        let mut backoff = earlier.unwrap_or_else(|| Backoff::new(MIN_DELAY, MAX_DELAY));
        let until = now + backoff.next_delay(chance);
        let failure = ResolveFailure { reason: why.clone(), ..failure.clone() };
        self.outage = Some(Outage { failure, backoff, until });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(why: &str, is_silent: bool) -> ResolveFailure {
        let registry = Reachability::Unreachable { why: why.to_owned(), is_silent };
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

        /// Records the answer with the shortest back-off.
        fn record(
            &mut self,
            admission: &Admission,
            image: &str,
            answer: Result<(), &ResolveFailure>,
            at: u64,
        ) -> bool {
            let now = self.at(at);
            self.registry.record(*admission == Admission::Probe, image, answer, now, 0)
        }
    }

    #[test]
    fn one_question_is_asked_after_each_backoff() {
        let mut it = BackoffFixture::new();
        let refused = unreachable("no route", false);
        assert_eq!(it.admit(0), Admission::Request);
        it.record(&Admission::Request, "a", Err(&refused), 0);
        let (mut now, mut delays) = (0, Vec::new());
        for _ in 0..7 {
            let asked = (now..).find(|second| it.registry.failure(it.at(*second)).is_none()).unwrap();
            assert_eq!(it.admit(asked - 1), Admission::Refused(refused.clone()));
            assert_eq!(it.admit(asked), Admission::Probe);
            assert_eq!(it.admit(asked + 10), Admission::Refused(refused.clone()), "while it is asked");
            delays.push(asked - now);
            now = asked + 20;
            assert!(!it.record(&Admission::Probe, "b", Err(&refused), now));
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn backoff_is_chosen_at_random() {
        let mut it = BackoffFixture::new();
        let now = it.at(0);
        it.registry.record(false, "a", Err(&unreachable("no route", false)), now, u64::MAX);
        assert!(matches!(it.admit(1), Admission::Refused(_)));
        assert_eq!(it.admit(2), Admission::Probe);
    }

    #[test]
    fn any_answer_ends_the_outage() {
        for answer in [Ok(()), Err(failure(Reachability::Reached))] {
            let mut it = BackoffFixture::new();
            it.record(&Admission::Request, "a", Err(&unreachable("no route", false)), 0);
            assert_eq!(it.admit(1), Admission::Probe);
            assert!(it.record(&Admission::Probe, "a", answer.as_ref().copied(), 2));
            assert!(!it.record(&Admission::Request, "a", answer.as_ref().copied(), 2), "the second time");
            assert_eq!(it.admit(2), Admission::Request);
            // The next outage begins with the shortest back-off.
            it.record(&Admission::Request, "a", Err(&unreachable("no route", false)), 3);
            assert_eq!(it.admit(4), Admission::Probe);
        }
    }

    #[test]
    fn answer_about_one_image_concerns_no_other() {
        let mut it = BackoffFixture::new();
        for registry in [Reachability::Reached, Reachability::Unknown] {
            assert!(!it.record(&Admission::Request, "a", Err(&failure(registry)), 0));
            assert_eq!(it.admit(0), Admission::Request);
        }
    }

    #[test]
    fn silence_concerns_all_images_if_a_second_one_has_no_answer() {
        let mut it = BackoffFixture::new();
        let silent = unreachable("no answer", true);
        for seconds in 0..3 {
            it.record(&Admission::Request, "slow", Err(&silent), seconds);
            assert_eq!(it.admit(seconds), Admission::Request, "it may be slow for one image");
        }
        it.record(&Admission::Request, "other", Ok(()), 3);
        it.record(&Admission::Request, "slow", Err(&silent), 4);
        assert_eq!(it.admit(4), Admission::Request);
        it.record(&Admission::Request, "other", Err(&silent), 5);
        assert_eq!(it.admit(5), Admission::Refused(silent.clone()));
        assert_eq!(it.admit(6), Admission::Probe);
        it.record(&Admission::Probe, "other", Err(&silent), 6);
        assert_eq!(it.admit(7), Admission::Refused(silent));
    }

    #[test]
    fn questions_that_were_asked_before_do_not_lengthen_the_backoff() {
        let mut it = BackoffFixture::new();
        for reason in ["no route", "refused"] {
            it.record(&Admission::Request, reason, Err(&unreachable(reason, false)), 0);
        }
        assert_eq!(it.admit(0), Admission::Refused(unreachable("no route", false)));
        assert_eq!(it.admit(1), Admission::Probe);
    }

    #[test]
    fn probe_without_a_result_lets_the_next_one_ask() {
        let mut it = BackoffFixture::new();
        let refused = unreachable("no route", false);
        it.record(&Admission::Request, "a", Err(&refused), 0);
        assert_eq!(it.admit(1), Admission::Probe);
        it.record(&Admission::Probe, "a", Err(&failure(Reachability::Unknown)), 2);
        assert_eq!(it.admit(2), Admission::Probe);
        // Its caller ended.
        assert_eq!(it.admit(3), Admission::Refused(refused));
        assert_eq!(it.admit(42), Admission::Probe);
    }

    #[test]
    fn others_have_the_sentence_of_the_registry() {
        let mut it = BackoffFixture::new();
        let reason = "the signature was not checked: no route".to_owned();
        let of_image = ResolveFailure { reason, ..unreachable("no route", false) };
        it.record(&Admission::Request, "a", Err(&of_image), 0);
        assert_eq!(it.admit(0), Admission::Refused(unreachable("no route", false)));
    }
}
