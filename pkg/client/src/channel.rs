//! The connection to a manager, and the failover to the next one.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use warren_proto::status::INCARNATION;
use warren_types::{CaDigest, ManagerAddress};

use crate::client_tls::ClientTls;
use crate::contexts::ClientTarget;
use crate::dial::{self, SwitchTimes};
use crate::error::{ClientDialError, Error};
use crate::tls_alert::LastTlsAlert;

/// Response metadata with the addresses of all managers, the responding one first.
const MANAGERS_METADATA: &str = "warren-manager-addresses";
/// Response metadata with the digest of the only certificate authority that users trust.
const AUTHORITY_METADATA: &str = "warren-certificate-authority";
/// Longer lists are ignored.
const MAX_ADVERTISED_MANAGERS: usize = 64;

/// A connection to one manager. Cheap to clone; reconnects automatically.
#[derive(Debug, Clone)]
pub(crate) struct ManagerChannel {
    /// Increases with each failover.
    number: u64,
    pub address: Arc<str>,
    pub channel: Channel,
    pub tls_alert: LastTlsAlert,
}

/// The incarnation in the metadata of a response.
pub(crate) fn incarnation_of(metadata: &MetadataMap) -> Option<u64> {
    metadata.get(INCARNATION).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// A link to one of several managers.
pub(crate) struct FailoverChannel {
    configured: Vec<ManagerAddress>,
    /// `None` for a socket or the own process, which belong to one manager.
    tls: Option<Arc<ClientTls>>,
    times: SwitchTimes,
    state: Mutex<FailoverState>,
    /// Held while dialling, so that concurrent callers share the result.
    switch_lock: tokio::sync::Mutex<()>,
}

struct FailoverState {
    current: ManagerChannel,
    /// Addresses that managers reported last; empty before the first response.
    advertised: Vec<ManagerAddress>,
    /// The latest known incarnation; 0 before the first response.
    incarnation: u64,
    /// The only authority that users trust, as managers reported last.
    authority: Option<CaDigest>,
}

impl fmt::Debug for FailoverChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("known", &self.configured).finish_non_exhaustive()
    }
}

impl FailoverChannel {
    /// Connects to one of the managers of `target`.
    pub async fn connect(target: &ClientTarget, times: SwitchTimes) -> Result<Self, Error> {
        let (known, tls, link) = match target {
            ClientTarget::Unix { socket } => {
                let refusal = LastTlsAlert::default();
                let channel = dial::connect_socket(socket, &refusal).await?;
                return Ok(Self::to_one(&socket.display().to_string(), channel, refusal));
            }
            ClientTarget::Tcp { addresses, identity } => {
                let tls = ClientTls::new(identity)?;
                let dial::DialedManager { address, channel, refusal } =
                    dial::connect_any(addresses, &tls, times).await?;
                let address = address.to_string().into();
                (
                    addresses.clone(),
                    Some(tls),
                    ManagerChannel { number: 0, address, channel, tls_alert: refusal },
                )
            }
        };
        Ok(Self::new(known, tls, times, link))
    }

    /// Connects to one manager by the streams that `dial` opens.
    pub async fn connect_with<F, Fut>(address: &str, dial: F) -> Result<Self, Error>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<UnixStream, ClientDialError>> + Send + 'static,
    {
        let refusal = LastTlsAlert::default();
        let channel = dial::connect_with(address, &refusal, dial).await?;
        Ok(Self::to_one(address, channel, refusal))
    }

    fn to_one(address: &str, channel: Channel, tls_alert: LastTlsAlert) -> Self {
        let current = ManagerChannel { number: 0, address: address.into(), channel, tls_alert };
        Self::new(Vec::new(), None, SwitchTimes::default(), current)
    }

    fn new(
        configured: Vec<ManagerAddress>,
        tls: Option<Arc<ClientTls>>,
        times: SwitchTimes,
        current: ManagerChannel,
    ) -> Self {
        let state =
            Mutex::new(FailoverState { current, advertised: Vec::new(), incarnation: 0, authority: None });
        Self { configured, tls, times, state, switch_lock: tokio::sync::Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, FailoverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The certificate of the client; `None` for a socket or the own process.
    pub fn tls(&self) -> Option<&ClientTls> {
        self.tls.as_deref()
    }

    /// The current link.
    pub fn current(&self) -> ManagerChannel {
        self.state().current.clone()
    }

    /// Addresses that managers reported last; empty before the first response.
    pub fn advertised(&self) -> Vec<ManagerAddress> {
        self.state().advertised.clone()
    }

    /// The latest known incarnation; 0 before the first response.
    pub fn incarnation(&self) -> u64 {
        self.state().incarnation
    }

    /// The only certificate authority that users trust, if managers have reported one.
    pub fn authority(&self) -> Option<CaDigest> {
        self.state().authority
    }

    /// Raises the known incarnation.
    pub fn observe_incarnation(&self, incarnation: u64) {
        let mut state = self.state();
        state.incarnation = state.incarnation.max(incarnation);
    }

    /// All known managers, those reported by managers first.
    fn candidates(&self) -> Vec<ManagerAddress> {
        let mut all = self.advertised();
        all.extend(self.configured.iter().filter(|known| !all.contains(known)).cloned().collect::<Vec<_>>());
        all
    }

    /// Number of known managers.
    pub fn manager_count(&self) -> usize {
        if self.tls.is_none() { 1 } else { self.candidates().len().max(1) }
    }

    /// Stores the addresses and the incarnation of a response. Addresses from a manager of an earlier incarnation are
    /// ignored.
    pub fn observe_metadata(&self, metadata: &MetadataMap) {
        let incarnation = incarnation_of(metadata);
        incarnation.into_iter().for_each(|incarnation| self.observe_incarnation(incarnation));
        if incarnation.is_some_and(|incarnation| incarnation < self.incarnation()) {
            return;
        }
        let authority = metadata.get(AUTHORITY_METADATA).and_then(|value| value.to_str().ok()?.parse().ok());
        if authority.is_some() {
            self.state().authority = authority;
        }
        let Some(text) = metadata.get(MANAGERS_METADATA).and_then(|value| value.to_str().ok()) else {
            return;
        };
        let addresses: Result<Vec<ManagerAddress>, _> = text.split(',').map(str::parse).collect();
        if let Ok(addresses) = addresses
            && addresses.len() <= MAX_ADVERTISED_MANAGERS
        {
            self.state().advertised = addresses;
        }
    }

    /// Switches to another manager than that of `left`, if one is reachable. A no-op if another call did so already.
    pub async fn switch_from(&self, left: &ManagerChannel) {
        let Some(tls) = &self.tls else { return };
        let _alone = self.switch_lock.lock().await;
        if self.current().number != left.number {
            return;
        }
        let mut others = self.candidates();
        // In turn after the current one, which comes last.
        let index = others.iter().position(|other| other.to_string() == *left.address);
        others.rotate_left(index.map_or(0, |index| index + 1));
        if others.len() < 2 {
            return;
        }
        let dialled = dial::connect_any(&others, tls, self.times).await;
        if let Ok(dial::DialedManager { address, channel, refusal }) = dialled {
            let address = address.to_string().into();
            self.state().current =
                ManagerChannel { number: left.number + 1, address, channel, tls_alert: refusal };
        }
    }
}
