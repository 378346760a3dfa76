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
    /// The version at which this manager saw the last change of a network.
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

    /// The nodes of `nodes` that have a session in `registry`, once each of them has applied all changes of `networks`
    /// until `index`. One that loses its session is waited for until it is back.
    pub async fn await_nodes(
        &self,
        registry: &SessionRegistry,
        index: u64,
        networks: &BTreeSet<NetworkId>,
        nodes: BTreeSet<NodeId>,
    ) -> BTreeSet<NodeId> {
        let version = self.last_change(index, networks).await;
        registry.await_network(version, nodes).await
    }

    /// The version that a node in these networks has from this manager when it has all changes of them until `index`.
    /// Waits until those are published.
    async fn last_change(&self, index: u64, networks: &BTreeSet<NetworkId>) -> u64 {
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
        let before = self.history.version();
        let NetworkChanges { mut peers, mut networks } = self.history.update(state, changes);
        if !peers && networks.is_empty() {
            return;
        }
        if self.history.version() == before {
            // `begin` compared a later state than that of these changes, and a value is later still. A session may have
            // sent the version without it.
            let later = self.history.update(state, None::<(u64, std::iter::Empty<&StateChange>)>);
            peers |= later.peers;
            networks.extend(later.networks);
        }
        self.encoded.clear();
        // A session may send it from now on. A version that is published later may contain nothing for its node.
        let version = self.history.version().index;
        self.changed_at.extend(networks.iter().map(|network| (*network, version)));
        self.changed_at.retain(|network, _| self.history.has_network(*network));
        self.unpublished.peers |= peers;
        self.unpublished.networks.extend(networks);
    }

    /// The changes for which sessions are to be woken now.
    fn publish(&mut self) -> NetworkChanges {
        std::mem::take(&mut self.unpublished)
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

#[cfg(test)]
mod tests {
    use super::*;
    use warren_core::{ApplyOutcome, Command};
    use warren_store::PublishedState;
    use warren_types::fixtures::published_port;
    use warren_types::spec::{ServiceSpec, TaskSpec};
    use warren_types::{ClusterId, INGRESS_NETWORK, Id, PublishMode, PublishedPort, ServiceId, Timestamp};

    const AT: Timestamp = Timestamp(0);

    /// Applies the command at the next index.
    fn apply(state: &mut State, command: Command) -> u64 {
        let index = state.applied().index + 1;
        let outcome = state.apply(1, index, &command);
        assert!(matches!(outcome, ApplyOutcome::Applied { .. }), "{command:?}: {outcome:?}");
        index
    }

    fn cluster() -> State {
        let mut state = State::new();
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        let feature_level = warren_core::FEATURE_LEVEL;
        apply(&mut state, Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level, at: AT });
        state
    }

    fn create_service(number: u128, ports: Vec<PublishedPort>) -> Command {
        let task = TaskSpec::new("demo:1".parse().unwrap());
        let spec = ServiceSpec { ports, ..ServiceSpec::new(format!("s{number}").parse().unwrap(), task) };
        Command::CreateService { id: ServiceId(Id(number)), spec, at: AT }
    }

    fn with_ingress_port(number: u128) -> Command {
        let mode = PublishMode::Ingress;
        create_service(number, vec![PublishedPort { mode, ..published_port(8000) }])
    }

    #[tokio::test]
    async fn awaited_version_is_one_that_a_node_gets() {
        let mut state = cluster();
        let registry = SessionRegistry::default();
        let publisher = NetworkPublisher::new(Store::new(PublishedState::initial(state.clone()), 1, 1).0);
        let changed = apply(&mut state, with_ingress_port(1));
        // As for a node that comes from a manager that has published it.
        publisher.lock().compare(&state, None::<(u64, std::iter::Empty<&StateChange>)>);
        let unrelated = apply(&mut state, create_service(2, Vec::new()));
        let changes = [ServiceId(Id(1)), ServiceId(Id(2))].map(StateChange::Service);
        publisher.update(&state, Some((unrelated, changes.iter())), &registry);
        let networks = BTreeSet::from([INGRESS_NETWORK]);
        assert_eq!(publisher.last_change(changed, &networks).await, changed);
        assert_eq!(publisher.last_change(unrelated, &networks).await, changed);
    }

    #[tokio::test]
    async fn later_value_raises_the_version() {
        let mut state = cluster();
        let registry = SessionRegistry::default();
        let publisher = NetworkPublisher::new(Store::new(PublishedState::initial(state.clone()), 1, 1).0);
        let ahead = apply(&mut state, create_service(2, Vec::new()));
        publisher.lock().compare(&state, None::<(u64, std::iter::Empty<&StateChange>)>);
        let changed = apply(&mut state, with_ingress_port(1));
        // The entry before it has a change of the same service.
        let changes = [StateChange::Service(ServiceId(Id(1)))];
        publisher.update(&state, Some((ahead, changes.iter())), &registry);
        assert_eq!(publisher.last_change(ahead, &BTreeSet::from([INGRESS_NETWORK])).await, changed);
    }
}
