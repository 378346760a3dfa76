//! Images and a registry in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use tokio::sync::watch;
use warren_image::{Credentials, Digest, Error, Listed, Part, Progress, Reference};
use warren_types::Timestamp;

use super::{Arrival, ImageSource};

/// What each image takes, in bytes.
const SIZE: u64 = 1 << 20;

/// What the registry does when it is asked for an image.
#[derive(Debug, Clone)]
enum Answer {
    /// It has it.
    Gives(Digest),
    /// It does not give it.
    Fails(Error),
    /// It comes, and came so far.
    Sends(Progress),
}

#[derive(Debug, Default)]
struct State {
    here: BTreeMap<String, Digest>,
    registry: BTreeMap<String, Answer>,
    pulled: Vec<String>,
    users: Vec<Option<String>>,
    used: BTreeMap<String, Timestamp>,
}

/// The images of a node and a registry, as a test says. Clones are the same.
#[derive(Debug, Clone)]
pub struct FakeImages {
    state: watch::Sender<State>,
    waiting: Arc<AtomicUsize>,
}

impl Default for FakeImages {
    fn default() -> Self {
        Self { state: watch::Sender::new(State::default()), waiting: Arc::default() }
    }
}

/// Counts one who waits for a pull.
struct Waiting(Arc<AtomicUsize>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeImages {
    /// The image is on the node.
    pub fn has(&self, reference: &Reference, digest: Digest) {
        self.state.send_modify(|state| state.here.extend([(reference.record(), digest)]));
    }

    /// Nothing is on the node any more.
    pub fn loses_all(&self) {
        self.state.send_modify(|state| state.here.clear());
    }

    /// The registry gives the image, also to those who wait for it.
    pub fn gives(&self, reference: &Reference, digest: Digest) {
        self.answers(reference, Answer::Gives(digest));
    }

    /// The registry does not give the image, also not to those who wait for it.
    pub fn fails(&self, reference: &Reference, error: Error) {
        self.answers(reference, Answer::Fails(error));
    }

    /// The registry sends the image, and does not come to an end.
    pub fn sends(&self, reference: &Reference, progress: Progress) {
        self.answers(reference, Answer::Sends(progress));
    }

    /// The names that were pulled, in order.
    pub fn pulled(&self) -> Vec<String> {
        self.state.borrow().pulled.clone()
    }

    /// As whom each of them was asked for.
    pub fn users(&self) -> Vec<Option<String>> {
        self.state.borrow().users.clone()
    }

    /// How many wait for pulls.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The images that were used.
    pub fn used(&self) -> Vec<String> {
        self.state.borrow().used.keys().cloned().collect()
    }

    fn answers(&self, reference: &Reference, answer: Answer) {
        self.state.send_modify(|state| state.registry.extend([(reference.record(), answer)]));
    }
}

#[tonic::async_trait]
impl ImageSource for FakeImages {
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error> {
        let state = self.state.borrow();
        Ok(match reference.digest() {
            Some(digest) => state.here.values().find(|here| *here == digest).cloned(),
            None => state.here.get(&reference.record()).cloned(),
        })
    }

    fn pull(&self, reference: &Reference, credentials: Option<Credentials>) -> Arrival {
        let name = reference.record();
        self.state.send_modify(|state| {
            state.pulled.push(name.clone());
            state.users.push(credentials.map(|credentials| credentials.user.clone()));
        });
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = Waiting(Arc::clone(&self.waiting));
        let (said, progress) = watch::channel(Progress::default());
        let (mut answers, state) = (self.state.subscribe(), self.state.clone());
        let outcome = async move {
            let _waiting = waiting;
            loop {
                let answer = answers.borrow_and_update().registry.get(&name).cloned();
                match answer {
                    Some(Answer::Gives(digest)) => {
                        state.send_modify(|state| state.here.extend([(name.clone(), digest.clone())]));
                        return Ok(digest);
                    }
                    Some(Answer::Fails(error)) => return Err(error),
                    Some(Answer::Sends(progress)) => said.send_modify(|said| *said = progress),
                    None => {}
                }
                answers.changed().await.expect("its sender is held above");
            }
        };
        Arrival { progress, outcome: outcome.boxed() }
    }

    async fn touch(&self, reference: &Reference, now: Timestamp) -> Result<(), Error> {
        self.state.send_modify(|state| state.used.extend([(reference.record(), now)]));
        Ok(())
    }

    async fn size(&self, reference: &Reference) -> Result<u64, Error> {
        Ok(self.find(reference).await?.map_or(0, |_| SIZE))
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        let state = self.state.borrow();
        let row = |(name, digest): (&String, &Digest)| Listed {
            reference: name.clone(),
            digest: digest.clone(),
            created: Timestamp(0),
            changed: Timestamp(0),
            last_used: state.used.get(name).copied().unwrap_or(Timestamp(0)),
            parts: BTreeMap::from([(Part::Blob(digest.clone()), SIZE)]),
        };
        Ok(state.here.iter().map(row).collect())
    }

    async fn remove(&self, name: &str) -> Result<bool, Error> {
        let mut was_here = false;
        self.state.send_modify(|state| was_here = state.here.remove(name).is_some());
        Ok(was_here)
    }
}
