//! Summaries of services. Managers make them of the state, without the whole services.

use crate::v1;
use crate::v1::service_spec::Mode;

impl From<&v1::Service> for v1::ServiceSummary {
    fn from(service: &v1::Service) -> Self {
        let unset = v1::ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&unset);
        let replicas = match &spec.mode {
            Some(Mode::Replicated(v1::Replicated { replicas })) => u32::try_from(*replicas).ok(),
            Some(Mode::Global(_)) | None => None,
        };
        Self {
            id: service.id.clone(),
            name: spec.name.clone(),
            version: service.version,
            created_at: service.created_at,
            revision: service.revision,
            removing: service.removing,
            image: spec.task.as_ref().map(|task| task.image.clone()).unwrap_or_default(),
            labels: spec.labels.clone(),
            global: matches!(spec.mode, Some(Mode::Global(_))),
            per: spec.per.clone(),
            bootstrap: spec.bootstrap,
            ports: spec.ports.clone(),
            running: service.running,
            replicas: replicas.unwrap_or(service.desired_tasks),
            uncreated_tasks: service.uncreated_tasks,
            rollout: service.rollout.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_those_of_the_spec_or_the_desired_tasks() {
        let summary = |mode| {
            let spec = Some(v1::ServiceSpec { name: "web".into(), mode, ..Default::default() });
            v1::ServiceSummary::from(&v1::Service { spec, desired_tasks: 5, ..Default::default() })
        };
        let replicated = summary(Some(Mode::Replicated(v1::Replicated { replicas: 3 })));
        assert_eq!((replicated.name.as_str(), replicated.global, replicated.replicas), ("web", false, 3));
        let global = summary(Some(Mode::Global(v1::Global {})));
        assert_eq!((global.global, global.replicas), (true, 5));
    }
}
