//! A client's secrets and volumes. No other client changes these, nor the services that use them.

use std::collections::BTreeMap;

use warren_core::State;
use warren_types::{Id, NodeId, SealedData, SecretObjectId, SecretObjectName, ServiceSpec, VolumeId};

use super::request::ClientRequest;
use super::{ExpectedRevision, SimClient};
use crate::random::SimRng;

/// Secrets of a client at the same time.
const SECRETS: usize = 2;

/// The version of each secret that a revision uses.
pub(super) type SecretVersions = BTreeMap<SecretObjectName, u64>;

/// What was acknowledged to a client about a secret.
#[derive(Debug, Clone)]
pub(super) struct ExpectedSecret {
    name: SecretObjectName,
    /// The number of its version; 1 for the first byte.
    number: u64,
    /// `None` once it is removed.
    byte: Option<u8>,
    /// The index at which it became true, which is its version.
    since: u64,
}

/// One byte, encrypted.
pub(super) fn sealed(byte: u8) -> SealedData {
    SealedData { size: 1, fingerprint: [byte; 32], sealed: vec![byte; 29] }
}

impl SimClient {
    /// The versions that a spec resolves to now.
    pub(super) fn secret_versions(&self, spec: &ServiceSpec) -> SecretVersions {
        let there = self.secrets.values().filter(|kept| kept.byte.is_some());
        let named = there.filter(|kept| uses_secret(spec, &kept.name));
        named.map(|kept| (kept.name.clone(), kept.number)).collect()
    }

    /// Names of the existing secrets.
    pub(super) fn secrets(&self) -> Vec<SecretObjectName> {
        let there = self.secrets.values().filter(|kept| kept.byte.is_some());
        there.map(|kept| kept.name.clone()).collect()
    }

    /// A request about a secret or a volume was applied.
    pub(super) fn record_stored(&mut self, request: &ClientRequest, since: u64) {
        match request {
            ClientRequest::CreateSecret(id, name, byte) => {
                let (name, byte) = (name.clone(), Some(*byte));
                self.secrets.insert(*id, ExpectedSecret { name, number: 1, byte, since });
            }
            ClientRequest::UpdateSecret(id, _, byte) => self.record_update(*id, *byte, since),
            ClientRequest::RemoveSecret(id) => {
                if let Some(kept) = self.secrets.get_mut(id) {
                    (kept.byte, kept.since) = (None, since);
                }
            }
            ClientRequest::CreateVolume(id, ..) => drop(self.volumes.insert(*id)),
            ClientRequest::RemoveVolume(id, purge) => {
                self.volumes.remove(id);
                // Reported by its node, which is not consulted here.
                self.pending = purge.then_some(ClientRequest::ConfirmPurge(*id));
            }
            _ => {}
        }
    }

    /// Takes the existing secrets and volumes for acknowledged from now on.
    pub(super) fn resync_secrets(&mut self, state: &State, since: u64) {
        let own = |number: u128| usize::try_from((number >> 64) as u64 & 0xff) == Ok(self.number);
        self.secrets.values_mut().for_each(|kept| (kept.byte, kept.since) = (None, since));
        for content in state.secret_objects().filter(|content| own(content.id.0.0)) {
            let number = content.current_version();
            let byte = state.secret_object_data(&content.id, number).map(|sealed| sealed.fingerprint[0]);
            let (name, since) = (content.name.clone(), content.version);
            self.secrets.insert(content.id, ExpectedSecret { name, number, byte, since });
        }
        let there = state.volumes().filter(|volume| self.volumes.contains(&volume.id) && !volume.removing);
        self.volumes = there.map(|volume| volume.id).collect();
    }

    /// Every service that uses the secret got another revision; one that managers rolled back since then has lost it
    /// again.
    fn record_update(&mut self, id: SecretObjectId, byte: u8, since: u64) {
        let Some(kept) = self.secrets.get_mut(&id) else { return };
        (kept.number, kept.byte, kept.since) = (kept.number + 1, Some(byte), since);
        let (name, number) = (&kept.name, kept.number);
        for promise in self.expected.values_mut().filter(|promise| promise.version < since) {
            let Some(ExpectedRevision { spec, uses }) = promise.revisions.last() else { continue };
            if uses.contains_key(name) {
                let mut uses = uses.clone();
                uses.insert(name.clone(), number);
                let next = ExpectedRevision { spec: spec.clone(), uses };
                promise.revisions.push(next);
                promise.version = since;
            }
        }
    }

    /// A new request about secrets and volumes.
    pub(super) fn next_storage_request(
        &mut self,
        chance: &mut SimRng,
        nodes: &[NodeId],
    ) -> Option<ClientRequest> {
        let there: Vec<(SecretObjectId, u64, u8)> =
            self.secrets.iter().filter_map(|(id, kept)| Some((*id, kept.since, kept.byte?))).collect();
        let volumes: Vec<VolumeId> = self.volumes.iter().copied().collect();
        Some(match chance.between(0, 5) {
            0 if !volumes.is_empty() => ClientRequest::RemoveVolume(chance.pick(&volumes)?, chance.one_in(2)),
            0 | 1 => {
                let node = if chance.one_in(2) { chance.pick(nodes) } else { None };
                let name = format!("data-{}", self.next_number()).parse().ok()?;
                ClientRequest::CreateVolume(VolumeId(self.new_id(chance)), name, node)
            }
            2 | 3 if there.len() < SECRETS => {
                self.created += 1;
                let name = format!("secret-{}-{}", self.number, self.created).parse().ok()?;
                ClientRequest::CreateSecret(SecretObjectId(self.new_id(chance)), name, 1)
            }
            2 => ClientRequest::RemoveSecret(chance.pick(&there)?.0),
            _ => {
                let (id, version, byte) = chance.pick(&there)?;
                ClientRequest::UpdateSecret(id, version, byte % 250 + 1)
            }
        })
    }

    /// The number of the next service of this client.
    pub(super) fn next_number(&self) -> u64 {
        (self.created + 1) << 8 | self.number as u64
    }

    fn new_id(&mut self, chance: &mut SimRng) -> Id {
        Id(u128::from(self.next_number()) << 64 | u128::from(chance.next()))
    }

    /// Checks the acknowledged secrets in a state.
    pub fn check_secrets(&self, state: &State) -> Result<(), String> {
        let asked = self.pending.as_ref().and_then(ClientRequest::secret);
        let certain = self.secrets.iter().filter(|(id, _)| asked != Some(**id));
        for (id, kept) in certain.filter(|(_, kept)| kept.since <= state.applied().index) {
            let found = state.secret_object(id);
            let holds = match kept.byte {
                None => found.is_none(),
                Some(byte) => found.is_some_and(|found| {
                    let current = state.secret_object_data(id, kept.number);
                    found.current_version() == kept.number
                        && current.is_some_and(|it| it.fingerprint == [byte; 32])
                }),
            };
            if !holds {
                return Err(format!("acknowledged writes are present: {kept:?}, found {found:?}"));
            }
        }
        Ok(())
    }
}

fn uses_secret(spec: &ServiceSpec, secret: &SecretObjectName) -> bool {
    spec.task.secrets.iter().any(|mount| mount.source == *secret)
}
