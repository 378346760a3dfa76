//! Waits for the unlock key of a manager whose keys are locked.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warren_bootstrap::member_identity::{self, LocalMemberStatus};
use warren_daemon::{CommandError, ExitKind, ShutdownSignals, error_chain, notify_ready};
use warren_log::DataDir;
use warren_security::UnlockKey;
use warren_security::seal::KeyFiles;
use warren_telemetry::{StatusProbe, Telemetry, TelemetryComponent};
use warren_types::UnlockKeyId;

use super::{COMPONENT, ManagerSetup, START_FAILED, start_failure};
use crate::locked::LockedManager;

/// Whether the manager of this machine may be started.
#[derive(Debug, Clone)]
pub enum LockState {
    /// It may: with the key that somebody gave, or without one, if it is not locked.
    Unlocked(Option<UnlockKey>),
    /// It is locked, and the process was asked to stop.
    Stopped,
}

/// The unlock key that the manager in this data directory needs; `None` if it needs none, or there is no manager.
///
/// # Errors
/// A file cannot be read.
pub fn needed_unlock_key(data_dir: &Path) -> Result<Option<UnlockKeyId>, CommandError> {
    let unusable = |error: &dyn std::error::Error| {
        CommandError::new(ExitKind::Failed, START_FAILED, error_chain(error), "check the data directory")
    };
    let dir = data_dir.join("manager");
    match member_identity::read_status(&dir).map_err(|error| unusable(&error))? {
        LocalMemberStatus::Member(_) | LocalMemberStatus::Superseded(..) => {
            KeyFiles::locked_with(&dir).map_err(|error| unusable(&error))
        }
        // The keys that are left are not locked.
        LocalMemberStatus::Removed(_)
        | LocalMemberStatus::Unused
        | LocalMemberStatus::InitPending
        | LocalMemberStatus::JoinPending(_) => Ok(None),
    }
}

/// Waits until somebody unlocks the manager of this machine, if it is locked: it does not end, so that no service
/// manager restarts it over and over.
///
/// # Errors
/// The data directory or the socket cannot be used.
pub async fn await_unlock(
    plan: &ManagerSetup,
    telemetry: &Telemetry,
    signals: &mut ShutdownSignals,
) -> Result<LockState, CommandError> {
    let Some(needed) = needed_unlock_key(&plan.data_dir)? else { return Ok(LockState::Unlocked(None)) };
    let failed = |error: &dyn std::error::Error| {
        let hint = "check --run-dir, and that no other process serves the socket";
        CommandError::new(ExitKind::Failed, START_FAILED, error_chain(error), hint)
    };
    let _lock =
        DataDir::open(&plan.data_dir).map_err(|error| start_failure(&error.into(), &plan.data_dir))?;
    std::fs::create_dir_all(&plan.run_dir).map_err(|error| failed(&error))?;
    let socket = plan.run_dir.join("warren.sock");
    let locked = LockedManager::bind(&socket, plan.data_dir.join("manager"), needed);
    let locked = locked.map_err(|error| failed(&error))?;
    let is_locked = Arc::new(AtomicBool::new(true));
    telemetry.add(COMPONENT, locked_component(&is_locked));
    tracing::warn!(unlock_key = %needed, "the manager is locked: run `warren manager unlock` on this machine");
    notify_ready();
    let key = tokio::select! {
        key = locked.wait_unlocked() => key.map_err(|error| failed(&error))?,
        () = signals.next() => return Ok(LockState::Stopped),
    };
    is_locked.store(false, Ordering::Relaxed);
    tracing::info!("the manager was unlocked");
    Ok(LockState::Unlocked(Some(key)))
}

/// Fails the probes of `/health` and `/ready` while the manager is locked.
fn locked_component(is_locked: &Arc<AtomicBool>) -> TelemetryComponent {
    let probe = |after: Result<(), &'static str>| {
        let is_locked = is_locked.clone();
        StatusProbe::new("lock", move || {
            let locked = Err("locked: run `warren manager unlock` on this machine".to_owned());
            let result =
                if is_locked.load(Ordering::Relaxed) { locked } else { after.map_err(str::to_owned) };
            std::future::ready(result)
        })
    };
    TelemetryComponent {
        health: vec![probe(Ok(()))],
        readiness: vec![probe(Err("is being started"))],
        ..TelemetryComponent::default()
    }
}
