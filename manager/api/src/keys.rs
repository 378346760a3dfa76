//! The keys that encrypt what managers store: their replacement, and how far that is.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Cluster, Command, KeyCommand, KeyRotationStep, State};
use warren_proto::v1;
use warren_types::KeyPhase;

use super::Api;
use super::audited_call::AuditedCall;

/// Names in a response.
const MAX_NAMES: usize = 100;

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
        }
    }

    pub(super) async fn begin_key_rotation(
        &self,
        request: Request<v1::RotateKeysRequest>,
    ) -> Result<Response<v1::KeyStatus>, Status> {
        let caller = AuditedCall::of(&request);
        let number = request.get_ref().number;
        let published = self.read_latest().await?;
        let is_next = published
            .state
            .key_rotation()
            .map_or(number == 0, |known| known.number == number && known.phase == KeyPhase::Complete);
        if !is_next {
            return Ok(Response::new(self.show_keys(&published.state)));
        }
        let command = KeyCommand::Rotate { number, step: KeyRotationStep::Begin, at: self.clock.now() };
        let begun: Arc<Cluster> = self.write(Command::Key(command)).await?;
        caller.identified(ObjectKind::Cluster, begun.id, "", begun.version);
        tracing::info!(%caller, "replacing the keys that encrypt what managers store");
        Ok(Response::new(self.show_keys(&self.store.read().state)))
    }
}
