//! Keeps the network history of this manager, and encodes each part of an update once for all sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use warren_core::session::{NetworkChanges, NetworkHistory, NetworkUpdateParts, SentNetwork};
use warren_core::{State, StateChange};
use warren_proto::convert::WireForm;
use warren_proto::v1;
use warren_store::Store;
use warren_types::{AssignmentVersion, NetworkId, NodeId};

use super::SessionRegistry;

/// Changes within this time are sent as one. The first one after a quiet time is sent at once.
const COALESCE_TIME: Duration = Duration::from_millis(50);

/// What nodes are told about the cluster's network. Cheap to clone.
#[derive(Clone)]
pub struct NetworkPublisher {
    store: Store,
    inner: Arc<Mutex<Inner>>,
    /// The index up to which changes were published.
    published: Arc<watch::Sender<u64>>,
}

struct Inner {
    history: NetworkHistory,
    /// Parts of updates at this version: those of a network, or of the peers, since an index.
    encoded: BTreeMap<(Option<NetworkId>, Option<u64>), Bytes>,
    /// Changes of which no session was woken yet.
    unpublished: NetworkChanges,
    /// The version at which the sessions of a network were woken last.
    changed_at: BTreeMap<NetworkId, u64>,
}

impl NetworkPublisher {
    /// Publishes what `store` contains.
    pub fn new(store: Store) -> Self {
        let history = NetworkHistory::new(&store.read().state);
        let published = Arc::new(watch::Sender::new(history.version().index));
        let (encoded, changed_at) = (BTreeMap::new(), BTreeMap::new());
        let inner = Inner { history, encoded, unpublished: NetworkChanges::default(), changed_at };
        Self { store, inner: Arc::new(Mutex::new(inner)), published }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the changes and wakes the sessions in `registry` until it is dropped.
    pub async fn run(&self, registry: &SessionRegistry) {
        let mut watch = self.store.watch(self.lock().history.version().index);
        let mut published_at = Instant::now();
        loop {
            let mut changes = watch.next().await;
            sleep_until(published_at + COALESCE_TIME).await;
            published_at = Instant::now();
            tokio::select! {
                biased;
                more = watch.next() => changes = changes.and_then(|mut batches| {
                    batches.extend(more?);
                    Ok(batches)
                }),
                () = std::future::ready(()) => {}
            }
            let published = self.store.read();
            let keys = changes.as_ref().ok().map(|batches| {
                let until = batches.last().map_or(0, |batch| batch.index);
                (until, batches.iter().flat_map(|batch| batch.changes.iter()))
            });
            self.update(&published.state, keys, registry);
        }
    }

    fn update<'a>(
        &self,
        state: &State,
        changes: Option<(u64, impl Iterator<Item = &'a StateChange>)>,
        registry: &SessionRegistry,
    ) {
        let mut inner = self.lock();
        inner.compare(state, changes);
        let told = inner.publish();
        let version = inner.history.version().index;
        drop(inner);
        self.published.send_replace(version);
        if told == NetworkChanges::default() {
            return;
        }
        for node in registry.contacts() {
            let networks = state.node_networks(&node.node);
            let is_told = told.peers && !networks.is_empty();
            if is_told || networks.iter().any(|network| told.networks.contains(network)) {
                registry.wake(node.node);
            }
        }
    }

    /// The session of a node that has a view of `version` with these networks, from an earlier session.
    pub fn begin(&self, version: AssignmentVersion, networks: &[NetworkId]) -> SentNetwork {
        let mut inner = self.lock();
        if inner.history.version() < version {
            // The node has seen changes that are to be published here in a moment.
            inner.compare(&self.store.read().state, None::<(u64, std::iter::Empty<&StateChange>)>);
        }
        SentNetwork::new(&inner.history, version, networks)
    }

    /// The version that a node in these networks has when it has all changes of them until `index`. Waits until those
    /// are published.
    pub async fn last_change(&self, index: u64, networks: &BTreeSet<NetworkId>) -> u64 {
        // The sender is a field of this value.
        let _ = self.published.subscribe().wait_for(|published| *published >= index).await;
        let inner = self.lock();
        let changes = networks.iter().filter_map(|network| inner.changed_at.get(network));
        changes.copied().max().unwrap_or_default()
    }

    /// The next update of the node; `None` if it has everything.
    pub fn next_update(
        &self,
        sent: &mut SentNetwork,
        state: &State,
        node: &NodeId,
    ) -> Option<v1::NetworkUpdate> {
        let mut inner = self.lock();
        let parts = sent.next_update(&inner.history, state, node)?;
        let NetworkUpdateParts { base, version, peers, catalogues, removed } = parts;
        let peers = peers.map(|since| inner.encode(None, since)).unwrap_or_default();
        let catalogues = catalogues.into_iter().map(|(network, since)| inner.encode(Some(network), since));
        Some(v1::NetworkUpdate {
            base: base.map(Into::into),
            version: Some(version.into()),
            peers,
            catalogues: catalogues.collect(),
            removed_networks: removed.iter().map(ToString::to_string).collect(),
        })
    }
}

impl Inner {
    fn compare<'a>(&mut self, state: &State, changes: Option<(u64, impl Iterator<Item = &'a StateChange>)>) {
        let NetworkChanges { peers, networks } = self.history.update(state, changes);
        if !peers && networks.is_empty() {
            return;
        }
        self.encoded.clear();
        self.unpublished.peers |= peers;
        self.unpublished.networks.extend(networks);
    }

    /// The changes for which sessions are to be woken now.
    fn publish(&mut self) -> NetworkChanges {
        let Self { history, unpublished, changed_at, .. } = self;
        let version = history.version().index;
        changed_at.extend(unpublished.networks.iter().map(|network| (*network, version)));
        if !unpublished.networks.is_empty() {
            changed_at.retain(|network, _| history.has_network(*network));
        }
        std::mem::take(unpublished)
    }

    fn encode(&mut self, network: Option<NetworkId>, since: Option<u64>) -> Bytes {
        let Self { history, encoded, .. } = self;
        let part = encoded.entry((network, since)).or_insert_with(|| match network {
            None => history.peers_since(since).to_wire().encode_to_vec().into(),
            Some(network) => {
                let change = history.catalogue_since(network, since);
                change.map(|change| change.to_wire().encode_to_vec().into()).unwrap_or_default()
            }
        });
        part.clone()
    }
}
