//! Does what the replacement of the keys that encrypt what managers store asks of this manager, and of the leader.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warren_bootstrap::autolock::open_unlock_key;
use warren_bootstrap::ca::ManagerKeys;
use warren_control::{BackgroundTasks, BoxError, Shutdown};
use warren_core::{Command, KeyCommand, KeyRotationStep, KeyStep, ManagerKeyState, ManagerKeyStep, State};
use warren_security::SecretObjectKeyError;
use warren_security::seal::Keyring;
use warren_store::timestamp::TimestampSource;
use warren_store::{PublishedState, Store};
use warren_types::{KeyRotation, SealedData, SealedItem, SecretObjectKeyId};

use crate::manager::follow_state::{IDLE, WAITING, follow_state};

/// Steps of one run.
const MAX_STEPS: usize = 64;
/// What one command seals again, at least one item.
const MAX_ITEMS: usize = 100;
const MAX_BYTES: usize = 1 << 20;

/// See the module documentation.
pub(super) struct KeyRotator {
    keys: Arc<ManagerKeys>,
    keyring: Arc<Keyring>,
    clock: TimestampSource,
    store: Store,
    /// The number of the last replacement for which the keys of the disk were renewed.
    renewed: Mutex<Option<u64>>,
}

/// Follows the replacement of the keys until `background_tasks` stop.
pub(super) fn follow_key_rotation(
    keys: &Arc<ManagerKeys>,
    keyring: &Arc<Keyring>,
    clock: &TimestampSource,
    store: &Store,
    background_tasks: &BackgroundTasks,
    shutdown: &Shutdown,
) {
    let rotator = Arc::new(KeyRotator {
        keys: keys.clone(),
        keyring: keyring.clone(),
        clock: clock.clone(),
        store: store.clone(),
        renewed: Mutex::default(),
    });
    follow_state("key-rotation", store, background_tasks, shutdown, move || {
        let rotator = rotator.clone();
        async move { rotator.run().await }
    });
}

impl KeyRotator {
    /// Takes steps as long as there are any. Returns the delay until the next look.
    async fn run(&self) -> Result<Duration, BoxError> {
        for _ in 0..MAX_STEPS {
            if !self.follow().await? && !self.lead().await? {
                // The step waits for a leader, or until the unlock key on the disk is changed.
                let is_waiting = self.next_step(&self.store.read().state).is_some();
                return Ok(if is_waiting { WAITING } else { IDLE });
            }
        }
        Ok(WAITING)
    }

    /// Takes the next step of this manager. Returns whether there was one.
    async fn follow(&self) -> Result<bool, BoxError> {
        let published = self.store.read();
        if self.next_step(&published.state).is_none() || published.role.leader_id.is_none() {
            return Ok(false);
        }
        // After a restart the state may be an earlier one than the keys are from: a key would be forgotten that is
        // needed.
        let published = self.store.read_linearizable().await?;
        let Some(rotation) = published.state.key_rotation() else { return Ok(false) };
        match self.next_step(&published.state) {
            None => Ok(false),
            Some(ManagerKeyStep::RenewDisk) => self.renew_disk(&published, rotation).await,
            Some(ManagerKeyStep::Record) => {
                let record = KeyRotationStep::Record { phase: rotation.phase, member: self.store.own_id() };
                self.propose(&published, rotation, record).await
            }
            Some(step) => {
                let (keys, rotation) = (self.keys.clone(), rotation.clone());
                tokio::task::spawn_blocking(move || keys.follow_key_rotation(&rotation, step)).await??;
                Ok(true)
            }
        }
    }

    fn next_step(&self, state: &State) -> Option<ManagerKeyStep> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        let secret_object_keys = self.secret_object_keys();
        let own = ManagerKeyState { secret_object_keys: &secret_object_keys, renewed };
        state.manager_key_step(self.store.own_id(), own)
    }

    /// The first one seals.
    fn secret_object_keys(&self) -> Vec<SecretObjectKeyId> {
        self.keys.secret_object_key.key_fingerprints().into_iter().map(SecretObjectKeyId::from).collect()
    }

    /// Waits while the manager has not applied a change of the unlock key.
    async fn renew_disk(&self, published: &PublishedState, rotation: &KeyRotation) -> Result<bool, BoxError> {
        let (keys, sealed) = (self.keys.clone(), published.state.unlock_key());
        if keys.files().unlock_key() != sealed.map(|sealed| sealed.id) {
            return Ok(false);
        }
        let open = |sealed| open_unlock_key(&keys.secret_object_key, keys.cluster, sealed);
        let unlock_key = sealed.map(open).transpose()?;
        self.store.renew_data_key().await?;
        let keyring = self.keyring.clone();
        let replaced = move || keys.replace_member_key(&keyring, unlock_key.as_ref());
        tokio::task::spawn_blocking(replaced).await??;
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(rotation.number);
        tracing::info!("everything that this manager stores is encrypted with new keys");
        Ok(true)
    }

    /// Takes the next step of the leader, if this manager leads. Returns whether there was one.
    async fn lead(&self) -> Result<bool, BoxError> {
        let published = self.store.read();
        let Some(rotation) = published.state.key_rotation().filter(|_| published.role.can_plan) else {
            return Ok(false);
        };
        match published.state.next_key_step() {
            None => Ok(false),
            Some(KeyStep::Offer) => {
                let offer = KeyRotationStep::Offer(self.keys.next_secret_object_key());
                self.propose(&published, rotation, offer).await
            }
            Some(KeyStep::Advance(phase)) => {
                self.propose(&published, rotation, KeyRotationStep::Advance(phase)).await
            }
            Some(KeyStep::Reseal) => self.reseal(&published.state, rotation).await,
        }
    }

    /// Seals some of what an earlier key seals again.
    async fn reseal(&self, state: &State, rotation: &KeyRotation) -> Result<bool, BoxError> {
        let (own, Some(sealing)) = (self.secret_object_keys(), rotation.sealing) else { return Ok(false) };
        if !own.contains(&sealing) {
            return Err(format!(
                "this manager does not have the secret object key {sealing}, which everything is to be sealed with: \
                 restart it after copying secret-objects.key from another manager of the cluster"
            )
            .into());
        }
        if own.first() != Some(&sealing) {
            // The phase has begun since this manager took its last step.
            return Ok(false);
        }
        let items = reseal(&self.keys, state)?;
        let count = items.len();
        let command = KeyCommand::Reseal { number: rotation.number, items, at: self.clock.now() };
        self.store.propose(Command::Key(command)).await?;
        if self.store.read().state.stale_items().count() < state.stale_items().count() {
            return Ok(true);
        }
        Err(format!("sealing {count} of the objects with the key {sealing} has replaced none of them").into())
    }

    /// Proposes the step, unless no leader is known: the run after the next election tries again.
    async fn propose(
        &self,
        published: &PublishedState,
        rotation: &KeyRotation,
        step: KeyRotationStep,
    ) -> Result<bool, BoxError> {
        if published.role.leader_id.is_none() {
            return Ok(false);
        }
        let command = KeyCommand::Rotate { number: rotation.number, step, at: self.clock.now() };
        self.store.propose(Command::Key(command)).await?;
        Ok(true)
    }
}

/// Some of what an earlier key seals, sealed again. What does not open is left out.
fn reseal(keys: &ManagerKeys, state: &State) -> Result<Vec<(SealedItem, SealedData)>, SecretObjectKeyError> {
    let (mut items, mut bytes, mut failure) = (Vec::new(), 0, None);
    for (item, data) in state.stale_items() {
        match keys.reseal(item, data) {
            Ok(resealed) => {
                bytes += resealed.sealed.len();
                if !items.is_empty() && bytes > MAX_BYTES {
                    break;
                }
                items.push((item, resealed));
            }
            Err(error) => {
                tracing::error!(?item, %error, "cannot be sealed with the new key");
                failure.get_or_insert(error);
            }
        }
        if items.len() >= MAX_ITEMS {
            break;
        }
    }
    match failure {
        Some(error) if items.is_empty() => Err(error),
        _ => Ok(items),
    }
}

#[cfg(test)]
mod tests;
