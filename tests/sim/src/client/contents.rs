//! A client's secrets and volumes. Nobody else changes these, nor the services that use them.

use std::collections::BTreeMap;

use warren_core::State;
use warren_types::{ContentId, ContentName, Id, NodeId, SealedContent, ServiceSpec, VolumeId};

use super::request::Request;
use super::{Client, Wish};
use crate::chance::Chance;

/// So many secrets at once.
const SECRETS: usize = 2;

/// Which version of each secret a revision uses.
pub(super) type Uses = BTreeMap<ContentName, u64>;

/// What a client was promised of a secret.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    name: ContentName,
    /// How often its byte was changed, and once for the first.
    number: u64,
    /// `None` once it is removed.
    byte: Option<u8>,
    /// The entry with which it became true, which is its version.
    since: u64,
}

/// What one byte is, sealed.
pub(super) fn sealed(byte: u8) -> SealedContent {
    SealedContent { size: 1, fingerprint: [byte; 32], sealed: vec![byte; 29] }
}

impl Client {
    /// Which versions a spec means now.
    pub(super) fn uses(&self, spec: &ServiceSpec) -> Uses {
        let there = self.contents.values().filter(|kept| kept.byte.is_some());
        let named = there.filter(|kept| names(spec, &kept.name));
        named.map(|kept| (kept.name.clone(), kept.number)).collect()
    }

    /// Names of the secrets that there are.
    pub(super) fn secrets(&self) -> Vec<ContentName> {
        let there = self.contents.values().filter(|kept| kept.byte.is_some());
        there.map(|kept| kept.name.clone()).collect()
    }

    /// What was asked of a secret or a volume was done.
    pub(super) fn stored(&mut self, request: &Request, since: u64) {
        match request {
            Request::Keep(id, name, byte) => {
                let (name, byte) = (name.clone(), Some(*byte));
                self.contents.insert(*id, Kept { name, number: 1, byte, since });
            }
            Request::Renew(id, _, byte) => self.renewed(*id, *byte, since),
            Request::Forget(id) => {
                if let Some(kept) = self.contents.get_mut(id) {
                    (kept.byte, kept.since) = (None, since);
                }
            }
            Request::Volume(id, ..) => drop(self.volumes.insert(*id)),
            Request::Discard(id, purge) => {
                self.volumes.remove(id);
                // Its node, which is not asked here, says so.
                self.pending = purge.then_some(Request::Purged(*id));
            }
            _ => {}
        }
    }

    /// What there is of its secrets and volumes is what it knows of them from now on.
    pub(super) fn contents_are(&mut self, state: &State, since: u64) {
        let own = |number: u128| usize::try_from((number >> 64) as u64 & 0xff) == Ok(self.number);
        self.contents.values_mut().for_each(|kept| (kept.byte, kept.since) = (None, since));
        for content in state.contents().filter(|content| own(content.id.0.0)) {
            let number = content.number();
            let byte = state.content_version(&content.id, number).map(|sealed| sealed.fingerprint[0]);
            let (name, since) = (content.name.clone(), content.version);
            self.contents.insert(content.id, Kept { name, number, byte, since });
        }
        let there = state.volumes().filter(|volume| self.volumes.contains(&volume.id) && !volume.removing);
        self.volumes = there.map(|volume| volume.id).collect();
    }

    /// Every service that uses the secret has another revision.
    fn renewed(&mut self, id: ContentId, byte: u8, since: u64) {
        let Some(kept) = self.contents.get_mut(&id) else { return };
        (kept.number, kept.byte, kept.since) = (kept.number + 1, Some(byte), since);
        let (name, number) = (&kept.name, kept.number);
        for promise in self.promises.values_mut() {
            let Some(Wish { spec, uses }) = promise.wanted.last() else { continue };
            if uses.contains_key(name) {
                let mut uses = uses.clone();
                uses.insert(name.clone(), number);
                let next = Wish { spec: spec.clone(), uses };
                promise.wanted.push(next);
                promise.version = since;
            }
        }
    }

    /// Something new about secrets and volumes.
    pub(super) fn think_of_storage(&mut self, chance: &mut Chance, nodes: &[NodeId]) -> Option<Request> {
        let there: Vec<(ContentId, u64, u8)> =
            self.contents.iter().filter_map(|(id, kept)| Some((*id, kept.since, kept.byte?))).collect();
        let volumes: Vec<VolumeId> = self.volumes.iter().copied().collect();
        Some(match chance.between(0, 5) {
            0 if !volumes.is_empty() => Request::Discard(chance.pick(&volumes)?, chance.one_in(2)),
            0 | 1 => {
                let node = if chance.one_in(2) { chance.pick(nodes) } else { None };
                let name = format!("data-{}", self.next_number()).parse().ok()?;
                Request::Volume(VolumeId(self.new_id(chance)), name, node)
            }
            2 | 3 if there.len() < SECRETS => {
                self.created += 1;
                let name = format!("secret-{}-{}", self.number, self.created).parse().ok()?;
                Request::Keep(ContentId(self.new_id(chance)), name, 1)
            }
            2 => Request::Forget(chance.pick(&there)?.0),
            _ => {
                let (id, version, byte) = chance.pick(&there)?;
                Request::Renew(id, version, byte % 250 + 1)
            }
        })
    }

    /// The number of the service that this client makes next.
    pub(super) fn next_number(&self) -> u64 {
        (self.created + 1) << 8 | self.number as u64
    }

    fn new_id(&mut self, chance: &mut Chance) -> Id {
        Id(u128::from(self.next_number()) << 64 | u128::from(chance.next()))
    }

    /// What was promised of its secrets holds in a state.
    pub fn secrets_are_kept(&self, state: &State) -> Result<(), String> {
        let asked = self.pending.as_ref().and_then(Request::content);
        let certain = self.contents.iter().filter(|(id, _)| asked != Some(**id));
        for (id, kept) in certain.filter(|(_, kept)| kept.since <= state.applied().index) {
            let found = state.content(id);
            let holds = match kept.byte {
                None => found.is_none(),
                Some(byte) => found.is_some_and(|found| {
                    let current = state.content_version(id, kept.number);
                    found.number() == kept.number && current.is_some_and(|it| it.fingerprint == [byte; 32])
                }),
            };
            if !holds {
                return Err(format!("acknowledged writes are present: {kept:?}, found {found:?}"));
            }
        }
        Ok(())
    }
}

fn names(spec: &ServiceSpec, secret: &ContentName) -> bool {
    spec.task.secrets.iter().any(|mount| mount.source == *secret)
}
