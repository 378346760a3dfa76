//! The keys that encrypt what managers store: their replacement, and how far that is.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Cluster, Command, KeyCommand, KeyRotationStep, State};
use warren_proto::v1;
use warren_types::{KeyPhase, SealedItem};

use super::Api;
use super::audited_call::AuditedCall;
use super::ca::MAX_NAMES;

impl Api {
    pub(super) fn show_keys(&self, state: &State) -> v1::KeyStatus {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (rotation, managers) = (state.key_rotation(), state.key_managers());
        // While the new key is not there yet, all are sealed with one that is replaced.
        let remaining = match rotation.map(|rotation| rotation.phase) {
            Some(KeyPhase::Disks | KeyPhase::Managers) => state.sealed_items().count(),
            Some(KeyPhase::Objects | KeyPhase::Complete) => state.stale_items().count(),
            None => 0,
        };
        let missing = managers.missing.iter().take(MAX_NAMES);
        // This manager may not seal with it yet.
        let sealing = rotation.and_then(|rotation| rotation.sealing);
        let sealing = sealing.unwrap_or_else(|| self.secret_object_key.key_fingerprint().into());
        v1::KeyStatus {
            number: rotation.map_or(0, |rotation| rotation.number),
            phase: rotation.map_or(v1::KeyPhase::Unspecified, |rotation| rotation.phase.into()).into(),
            began_at: rotation.map_or(0, |rotation| rotation.began_at.0),
            secret_object_key: sealing.to_string(),
            managers: count(managers.total),
            missing_managers: missing.map(|member| member.name.to_string()).collect(),
            objects: count(state.sealed_items().count()),
            remaining_objects: count(remaining),
            remaining_names: remaining_names(state),
        }
    }

    pub(super) async fn begin_key_rotation(
        &self,
        request: Request<v1::RotateKeysRequest>,
    ) -> Result<Response<v1::KeyStatus>, Status> {
        let caller = AuditedCall::of(&request);
        let number = request.get_ref().number;
        let published = self.read_latest().await?;
        if !published.state.may_begin_key_rotation(number) {
            return Ok(Response::new(self.show_keys(&published.state)));
        }
        let command = KeyCommand::Rotate { number, step: KeyRotationStep::Begin, at: self.clock.now() };
        let begun: Arc<Cluster> = self.write(Command::Key(command)).await?;
        caller.identified(ObjectKind::Cluster, begun.id, "", begun.version);
        tracing::info!(%caller, "replacing the keys that encrypt what managers store");
        Ok(Response::new(self.show_keys(&self.store.read().state)))
    }
}

/// Names of what an earlier key seals, once a new one is there.
fn remaining_names(state: &State) -> Vec<String> {
    let name = |item: SealedItem| match item {
        SealedItem::Authority => "the certificate authority".to_owned(),
        SealedItem::UnlockKey => "the unlock key".to_owned(),
        SealedItem::SecretObject { id, number } => match state.secret_object(&id) {
            Some(object) => format!("{} {}, version {number}", object.kind, object.name),
            None => format!("{id}, version {number}"),
        },
    };
    state.stale_items().take(MAX_NAMES).map(|(item, _)| name(item)).collect()
}

#[cfg(test)]
mod tests {
    use warren_core::FEATURE_LEVEL;
    use warren_types::{
        ClusterId, Id, ManagerId, NAMED_KEY_FORMAT, NextSecretObjectKey, SealedData, SecretObjectId,
        SecretObjectKeyId, SecretObjectKind, Timestamp,
    };

    use super::*;

    const AT: Timestamp = Timestamp(1);

    #[test]
    fn objects_that_an_earlier_key_seals_are_named() {
        let sealed = [&[NAMED_KEY_FORMAT][..], &1u64.to_be_bytes(), &[0]].concat();
        let data = SealedData { size: 1, fingerprint: [1; 32], sealed };
        let next = NextSecretObjectKey { id: SecretObjectKeyId(2), sealed: data.clone() };
        let create = Command::CreateCluster {
            id: ClusterId(Id(1)),
            ranges: vec!["10.0.0.0/8".parse().unwrap()],
            feature_level: FEATURE_LEVEL,
            at: AT,
        };
        let register = Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address: "10.0.0.1:8080".parse().unwrap(),
            level: FEATURE_LEVEL,
            at: AT,
        };
        let secret = Command::CreateSecretObject {
            id: SecretObjectId(Id(1)),
            kind: SecretObjectKind::Secret,
            name: "db".parse().unwrap(),
            labels: Default::default(),
            data,
            at: AT,
        };
        let mut state = State::new();
        (1..).zip([create, register, secret]).for_each(|(index, command)| {
            state.apply(1, index, &command);
        });
        for step in [
            KeyRotationStep::Begin,
            KeyRotationStep::Record { phase: KeyPhase::Disks, member: 1 },
            KeyRotationStep::Offer(next),
            KeyRotationStep::Record { phase: KeyPhase::Managers, member: 1 },
            KeyRotationStep::Advance(KeyPhase::Objects),
        ] {
            assert_eq!(remaining_names(&state), [""; 0]);
            let number = state.key_rotation().map_or(0, |rotation| rotation.number);
            let command = Command::Key(KeyCommand::Rotate { number, step, at: AT });
            state.apply(1, state.applied().index + 1, &command);
        }
        assert_eq!(remaining_names(&state), ["secret db, version 1"]);
    }
}
