//! Autolock: whether managers lock the keys on their disks, and with which key.

use std::sync::Arc;

use tonic::{Code, Request, Response, Status};
use warren_bootstrap::autolock::{open_unlock_key, seal_unlock_key};
use warren_core::state::ObjectKind;
use warren_core::{Cluster, Command, KeyCommand, Refusal, State};
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_security::UnlockKey;
use warren_store::problem::status_of;
use warren_types::{UnlockKeyId, Violation};

use super::Api;
use super::audited_call::AuditedCall;

fn autolock_off() -> Status {
    let message = "autolock is off: turn it on with `warren cluster update --autolock on`";
    Problem::new(Code::FailedPrecondition, "AUTOLOCK_OFF", message).into()
}

impl Api {
    /// Turns autolock on with a new key, or off. Nothing changes if it is so already.
    ///
    /// # Errors
    /// As [`Api::propose`].
    pub(super) async fn set_autolock(&self, is_on: bool) -> Result<Arc<Cluster>, Status> {
        let published = self.read_latest().await?;
        let cluster = published.state.cluster().ok_or_else(|| status_of(Refusal::NoCluster))?;
        if published.state.unlock_key().is_some() == is_on {
            return Ok(cluster.clone());
        }
        let key = is_on.then(|| seal_unlock_key(&self.secret_object_key, cluster.id, &UnlockKey::generate()));
        let command = KeyCommand::SetUnlockKey { key, replaces: None, at: self.clock.now() };
        self.write(Command::Key(command)).await
    }

    /// The unlock key, and the managers that are not locked with it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) async fn show_unlock_key(&self, state: &State) -> Result<v1::UnlockKey, Status> {
        let Some((cluster, sealed)) = state.cluster().zip(state.unlock_key()) else {
            return Ok(v1::UnlockKey::default());
        };
        let key = open_unlock_key(&self.secret_object_key, cluster.id, sealed).map_err(|error| {
            tracing::error!(%error, "the unlock key cannot be shown");
            Status::from(Problem::new(Code::Internal, "UNLOCK_KEY", error))
        })?;
        Ok(v1::UnlockKey {
            key: key.reveal().to_string(),
            id: sealed.id.to_string(),
            pending_managers: self.managers_not_locked_with(state, sealed.id).await,
        })
    }

    pub(super) async fn replace_unlock_key(
        &self,
        request: Request<v1::RotateUnlockKeyRequest>,
    ) -> Result<Response<v1::UnlockKey>, Status> {
        let caller = AuditedCall::of(&request);
        let replaces = request.get_ref().id.parse::<UnlockKeyId>();
        let replaces = replaces.map_err(|why| status_of(Violation::new("id", why)))?;
        let published = self.read_latest().await?;
        let known = published.state.unlock_key().ok_or_else(autolock_off)?;
        if known.id == replaces {
            let cluster = published.state.cluster().ok_or_else(|| status_of(Refusal::NoCluster))?;
            let key = seal_unlock_key(&self.secret_object_key, cluster.id, &UnlockKey::generate());
            let (id, replaces) = (key.id, Some(replaces));
            let command = KeyCommand::SetUnlockKey { key: Some(key), replaces, at: self.clock.now() };
            let changed: Arc<Cluster> = self.write(Command::Key(command)).await?;
            caller.identified(ObjectKind::Cluster, changed.id, "", changed.version);
            tracing::info!(%caller, unlock_key = %id, "unlock key replaced");
        }
        let state = &self.store.read().state;
        self.show_unlock_key(state).await.map(Response::new)
    }
}
