//! Policies of updates and rollbacks.

use std::time::Duration;

use warren_types::{FailureAction, UpdateOrder, UpdatePolicy, Violations};

use super::fields::{FieldReader, unknown_enum_value};
use super::spec::millis;
use crate::v1;

impl TryFrom<v1::UpdatePolicy> for UpdatePolicy {
    type Error = Violations;

    fn try_from(wire: v1::UpdatePolicy) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let v1::UpdatePolicy { parallelism, delay_ms, order, monitor_ms, failure_ratio, on_failure } = wire;
        let default = Self::default();
        let parallelism = fields.parse_optional("parallelism", &parallelism);
        let order = fields.nest("order", read_order(order));
        let failure_ratio = fields.parse_optional("failureRatio", &failure_ratio);
        let on_failure = fields.nest("onFailure", read_action(on_failure));
        let built = || {
            Some(Self {
                parallelism: parallelism?.unwrap_or(default.parallelism),
                delay: Duration::from_millis(delay_ms),
                order: order?,
                monitor: monitor_ms.map_or(default.monitor, Duration::from_millis),
                failure_ratio: failure_ratio?.unwrap_or_default(),
                on_failure: on_failure?,
            })
        };
        fields.finish(built())
    }
}

impl From<&UpdatePolicy> for v1::UpdatePolicy {
    fn from(policy: &UpdatePolicy) -> Self {
        let UpdatePolicy { parallelism, delay, order, monitor, failure_ratio, on_failure } = policy;
        let order = order.map_or(v1::UpdateOrder::Unspecified, |order| match order {
            UpdateOrder::StartFirst => v1::UpdateOrder::StartFirst,
            UpdateOrder::StopFirst => v1::UpdateOrder::StopFirst,
        });
        let on_failure = on_failure.map_or(v1::FailureAction::Unspecified, |action| match action {
            FailureAction::Rollback => v1::FailureAction::Rollback,
            FailureAction::Pause => v1::FailureAction::Pause,
            FailureAction::Continue => v1::FailureAction::Continue,
        });
        Self {
            parallelism: parallelism.to_string(),
            delay_ms: millis(*delay),
            order: order.into(),
            monitor_ms: Some(millis(*monitor)),
            failure_ratio: failure_ratio.to_string(),
            on_failure: on_failure.into(),
        }
    }
}

fn read_order(wire: i32) -> Result<Option<UpdateOrder>, Violations> {
    match v1::UpdateOrder::try_from(wire) {
        Ok(v1::UpdateOrder::Unspecified) => Ok(None),
        Ok(v1::UpdateOrder::StartFirst) => Ok(Some(UpdateOrder::StartFirst)),
        Ok(v1::UpdateOrder::StopFirst) => Ok(Some(UpdateOrder::StopFirst)),
        Err(_) => Err(unknown_enum_value(wire, "start-first or stop-first")),
    }
}

fn read_action(wire: i32) -> Result<Option<FailureAction>, Violations> {
    match v1::FailureAction::try_from(wire) {
        Ok(v1::FailureAction::Unspecified) => Ok(None),
        Ok(v1::FailureAction::Rollback) => Ok(Some(FailureAction::Rollback)),
        Ok(v1::FailureAction::Pause) => Ok(Some(FailureAction::Pause)),
        Ok(v1::FailureAction::Continue) => Ok(Some(FailureAction::Continue)),
        Err(_) => Err(unknown_enum_value(wire, "rollback, pause or continue")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_policy_is_refused_with_path() {
        let read = |change: fn(&mut v1::UpdatePolicy)| {
            let mut wire = v1::UpdatePolicy::default();
            change(&mut wire);
            UpdatePolicy::try_from(wire)
        };
        assert_eq!(read(|_| ()), Ok(UpdatePolicy::default()));
        let path = |change| read(change).unwrap_err().0[0].path.clone();
        assert_eq!(path(|wire| wire.parallelism = "many".into()), "parallelism");
        assert_eq!(path(|wire| wire.failure_ratio = "2".into()), "failureRatio");
        assert_eq!(path(|wire| wire.order = 9), "order");
        assert_eq!(path(|wire| wire.on_failure = 9), "onFailure");
    }
}
