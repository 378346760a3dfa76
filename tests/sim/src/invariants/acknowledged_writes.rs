//! An acknowledged write is present in every manager that has applied its index.

use warren_core::State;
use warren_types::ServiceId;

use crate::client::{ExpectedService, SimClient};

/// Checks all acknowledged writes of a client, except the object it is writing now.
pub fn all(state: &State, client: &SimClient) -> Result<(), String> {
    let mut certain = client.expected.iter().filter(|(id, _)| client.pending_service() != Some(**id));
    certain.try_for_each(|(id, promise)| one(state, *id, promise))?;
    client.check_secrets(state)
}

/// Checks one acknowledged write.
pub fn one(state: &State, service: ServiceId, promise: &ExpectedService) -> Result<(), String> {
    if state.applied().index < promise.since {
        return Ok(());
    }
    let found = state.service(&service);
    let kept = match promise.desired_spec() {
        Some(spec) => found.is_some_and(|found| !found.removing && *found.spec == **spec),
        None => found.is_none_or(|found| found.removing),
    };
    if kept {
        return Ok(());
    }
    Err(format!("acknowledged writes are present: {promise:?} of {service}, found {found:?}"))
}

/// The acknowledged write had been applied by some manager.
pub fn chosen(newest: &State, promise: &ExpectedService) -> Result<(), String> {
    let applied = newest.applied().index;
    if promise.since <= applied {
        return Ok(());
    }
    Err(format!("acknowledged writes are present: {promise:?} when {applied} was the last entry"))
}
