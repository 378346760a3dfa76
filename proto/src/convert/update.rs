//! Policies of updates and rollbacks.

use std::time::Duration;

use warren_types::{UpdatePolicy, Violations};

use super::fields::{FieldReader, millis};
use super::wire_form::{WireForm, field};
use crate::v1;

impl TryFrom<v1::UpdatePolicy> for UpdatePolicy {
    type Error = Violations;

    fn try_from(wire: v1::UpdatePolicy) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let v1::UpdatePolicy { parallelism, delay_ms, order, monitor_ms, failure_ratio, on_failure } = wire;
        let default = Self::default();
        let parallelism = fields.parse_optional("parallelism", &parallelism);
        let order = field(&mut fields, "order", WireForm::from_wire(order));
        let failure_ratio = fields.parse_optional("failureRatio", &failure_ratio);
        let on_failure = field(&mut fields, "on_failure", WireForm::from_wire(on_failure));
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
        Self {
            parallelism: parallelism.to_string(),
            delay_ms: millis(*delay),
            order: order.to_wire(),
            monitor_ms: Some(millis(*monitor)),
            failure_ratio: failure_ratio.to_string(),
            on_failure: on_failure.to_wire(),
        }
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
