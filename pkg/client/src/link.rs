//! The connection to whichever manager answers, and the way to the next one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ClientConfig;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use warren_proto::status::LIFE;
use warren_types::ManagerAddress;

use crate::contexts::Target;
use crate::dial;
use crate::error::Error;
use crate::refusal::Refusal;

/// In every answer: where the managers are, the one that answered first.
const MANAGERS: &str = "warren-managers";
/// More managers than this are no list of managers.
const MOST: usize = 64;

/// A connection to one manager. Cheap to clone; made again by itself when it is lost.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    /// Counts up with every one that takes the place of another.
    number: u64,
    pub address: Arc<str>,
    pub channel: Channel,
    pub refusal: Refusal,
}

/// In which life of the cluster the manager is that gave an answer with this.
pub(crate) fn life_of(metadata: &MetadataMap) -> Option<u64> {
    metadata.get(LIFE).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Keeps a link to one of several managers.
pub(crate) struct Links {
    known: Vec<ManagerAddress>,
    /// `None` over a socket, which leads to one manager only.
    tls: Option<Arc<ClientConfig>>,
    state: Mutex<State>,
    /// Held by whoever dials, so that those who wait for the same are there when it is.
    moving: tokio::sync::Mutex<()>,
}

struct State {
    link: Link,
    /// What managers said last of where they are; empty before the first word.
    told: Vec<ManagerAddress>,
    /// The latest life of the cluster that any manager was in; 0 before the first word.
    life: u64,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Links {
    /// Connects to one of the managers that `target` names.
    pub async fn connect(target: &Target) -> Result<Self, Error> {
        let (known, tls, link) = match target {
            Target::Unix { socket } => {
                let refusal = Refusal::default();
                let channel = dial::socket(socket, &refusal).await?;
                let address = socket.display().to_string().into();
                (Vec::new(), None, Link { number: 0, address, channel, refusal })
            }
            Target::Tcp { addresses, identity } => {
                let tls = dial::tls(identity)?;
                let dial::Dialled { address, channel, refusal } = dial::any(addresses, &tls).await?;
                let address = address.to_string().into();
                (addresses.clone(), Some(tls), Link { number: 0, address, channel, refusal })
            }
        };
        let state = Mutex::new(State { link, told: Vec::new(), life: 0 });
        Ok(Self { known, tls, state, moving: tokio::sync::Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that is used now.
    pub fn current(&self) -> Link {
        self.state().link.clone()
    }

    /// What managers said last of where they are; empty before the first word.
    pub fn told(&self) -> Vec<ManagerAddress> {
        self.state().told.clone()
    }

    /// The latest life of the cluster that is known of; 0 before the first word.
    pub fn life(&self) -> u64 {
        self.state().life
    }

    /// The cluster was in that life before.
    pub fn has_seen(&self, life: u64) {
        let mut state = self.state();
        state.life = state.life.max(life);
    }

    /// Every manager that there is to go to. Those that managers tell of come first.
    fn all(&self) -> Vec<ManagerAddress> {
        let mut all = self.told();
        all.extend(self.known.iter().filter(|known| !all.contains(known)).cloned().collect::<Vec<_>>());
        all
    }

    /// To how many managers there is a way.
    pub fn count(&self) -> usize {
        if self.tls.is_none() { 1 } else { self.all().len().max(1) }
    }

    /// Notes what an answer says of where managers are, and in which life of the cluster the one that answers is. What
    /// one of an earlier life says of where they are counts for nothing.
    pub fn heard(&self, metadata: &MetadataMap) {
        let life = life_of(metadata);
        life.into_iter().for_each(|life| self.has_seen(life));
        if life.is_some_and(|life| life < self.life()) {
            return;
        }
        let Some(text) = metadata.get(MANAGERS).and_then(|value| value.to_str().ok()) else { return };
        let told: Result<Vec<ManagerAddress>, _> = text.split(',').map(str::parse).collect();
        if let Ok(told) = told
            && told.len() <= MOST
        {
            self.state().told = told;
        }
    }

    /// Goes to another manager than that of `left`, if one can be reached. Harmless when another call did so already.
    pub async fn follow(&self, left: &Link) {
        let Some(tls) = &self.tls else { return };
        let _alone = self.moving.lock().await;
        if self.current().number != left.number {
            return;
        }
        let mut others = self.all();
        // Behind the one that is left, in turn; that one itself last.
        let place = others.iter().position(|other| other.to_string() == *left.address);
        others.rotate_left(place.map_or(0, |place| place + 1));
        if others.len() < 2 {
            return;
        }
        if let Ok(dial::Dialled { address, channel, refusal }) = dial::any(&others, tls).await {
            let address = address.to_string().into();
            self.state().link = Link { number: left.number + 1, address, channel, refusal };
        }
    }
}
