//! Requests whose conversion needs fields of several messages.

use warren_types::{ServiceId, ServiceSpec, Violation, Violations};

use super::fields::FieldReader;
use crate::v1;

/// Id and spec of a create; paths start at the request: `spec.task.limits.memory`.
impl TryFrom<v1::CreateServiceRequest> for (ServiceId, ServiceSpec) {
    type Error = Violations;

    fn try_from(wire: v1::CreateServiceRequest) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let id = fields.parse("id", &wire.id);
        let spec = fields.required("spec", wire.spec);
        fields.finish(id.zip(spec))
    }
}

/// A desired number of replicas: signed on the wire so that a negative one can be rejected instead of
/// becoming a large one. The violation's path is `replicas`. `ServiceSpec::validate` checks the limit.
pub fn replicas(wire: i64) -> Result<u32, Violations> {
    u32::try_from(wire).map_err(|_| {
        let problem = if wire < 0 { "is negative" } else { "is too many" };
        let most = warren_types::spec::MAX_REPLICAS;
        Violation::new("replicas", format!("{wire} {problem}; give 0 to {most}")).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_request() {
        let replicated = v1::Replicated { replicas: -3 };
        let task = v1::TaskSpec { image: "nginx".into(), ..Default::default() };
        let spec = v1::ServiceSpec {
            name: "web".into(),
            mode: Some(v1::service_spec::Mode::Replicated(replicated)),
            task: Some(task),
            ..Default::default()
        };
        let request = v1::CreateServiceRequest { id: "1".into(), spec: Some(spec), ..Default::default() };
        let violations = <(ServiceId, ServiceSpec)>::try_from(request).unwrap_err().to_string();
        assert_eq!(
            violations,
            "id: \"1\" is not an id of 25 base-36 digits; \
             spec.mode.replicated.replicas: -3 is negative; give 0 to 1000000"
        );
    }

    #[test]
    fn id_above_128_bits_is_refused_with_its_field() {
        let id = "z".repeat(25);
        let request = v1::CreateServiceRequest { id: id.clone(), spec: None, ..Default::default() };
        let violations = <(ServiceId, ServiceSpec)>::try_from(request).unwrap_err().to_string();
        assert_eq!(
            violations,
            format!(
                "id: \"{id}\" is too long: an id has 128 bits, which are 25 base-36 digits up to \
                 f5lxx1zz5pnorynqglhzmsp33; spec: is missing"
            )
        );
    }

    #[test]
    fn negative_replicas_are_refused() {
        assert_eq!(replicas(0), Ok(0));
        assert_eq!(replicas(7), Ok(7));
        let violations = replicas(i64::from(u32::MAX) + 1).unwrap_err().to_string();
        assert_eq!(violations, "replicas: 4294967296 is too many; give 0 to 1000000");
    }
}
