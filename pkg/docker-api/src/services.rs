//! `/services`.

use std::time::Duration;

use hyper::StatusCode;
use rand::RngExt;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use warren_client::{Client, EventQuery, EventStart, NewVolume, SeccompConfig, VolumeListOptions};
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;
use warren_types::{Id, SecretObjectId, ServiceId, VolumeId};

use crate::docker_error::DockerError;
use crate::model;
use crate::object_ids::{ObjectIds, id_of};
use crate::objects::{Endpoint, Service, ServiceStatus, UpdateStatus, VirtualIp};
use crate::request::DockerRequest;
use crate::response::{Answer, created, empty, meta, ok, time};
use crate::spec::{self, DefaultFields, MountedVolume, ReceivedSpec};

const FILTERS: [&str; 5] = ["id", "label", "mode", "name", "runtime"];

/// `GET /services`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let ids = ObjectIds::read(client).await?;
    let show_accepted = |service: v1::Service| -> Result<Option<Service>, DockerError> {
        let spec = service.spec.as_ref();
        let is_global =
            matches!(spec.and_then(|spec| spec.mode.as_ref()), Some(v1::service_spec::Mode::Global(_)));
        let mode = if is_global { "global" } else { "replicated" };
        let is_accepted = filters.id(&service.id)
            && filters.name_prefix(spec.map_or("", |spec| &spec.name))
            && filters.labels("label", |key| spec?.labels.get(key))
            && filters.any("mode", |wanted| wanted == mode)
            && filters.any("runtime", |runtime| runtime == "container");
        if !is_accepted {
            return Ok(None);
        }
        let (running_tasks, desired_tasks) = (service.running, service.desired_tasks);
        let status = ServiceStatus { running_tasks, desired_tasks, completed_tasks: 0 };
        let service_status = request.flag("status").then_some(status);
        let shown = show(service, &ids, DefaultFields::LeftOut)?;
        Ok(Some(Service { service_status, ..shown }))
    };
    let listed = client.services().list_as(show_accepted).await?.into_iter();
    ok(&listed.filter_map(Result::transpose).collect::<Result<Vec<Service>, _>>()?)
}

/// `GET /services/ID`. It shows the defaults: clients that change what they were shown put those of Docker in the place
/// of what is missing.
pub async fn inspect(client: &Client, reference: &str) -> Answer {
    let (services, ids) = (client.services(), ObjectIds::read(client));
    let (service, ids) = futures::try_join!(services.get(reference), ids)?;
    ok(&show(service, &ids, DefaultFields::Shown)?)
}

fn show(mut service: v1::Service, ids: &ObjectIds, defaults: DefaultFields) -> Result<Service, DockerError> {
    let spec = stored_service_spec(service.spec.take().unwrap_or_default())?;
    let spec = spec::to_docker(&spec, ids, defaults);
    let endpoint = spec.endpoint_spec.clone().unwrap_or_default();
    let virtual_ips = service.virtual_addresses.iter().map(|(network, address)| VirtualIp {
        network_id: id_of(&ids.networks, network),
        addr: format!("{address}/32"),
    });
    Ok(Service {
        meta: meta(service.version, service.created_at, service.updated_at),
        endpoint: Endpoint {
            ports: endpoint.ports.clone(),
            spec: endpoint,
            virtual_ips: virtual_ips.collect(),
        },
        update_status: update_status(&service),
        service_status: None,
        id: service.id,
        spec,
    })
}

/// How far the last update is; `None` before the first one.
fn update_status(service: &v1::Service) -> Option<UpdateStatus> {
    let rollout = service.rollout.as_ref().filter(|_| service.revision > 1)?;
    let (state, is_over) = match rollout.state() {
        v1::RolloutState::Unspecified => return None,
        v1::RolloutState::Updating => ("updating", false),
        v1::RolloutState::Completed => ("completed", true),
        v1::RolloutState::Paused => ("paused", false),
        v1::RolloutState::RollingBack => ("rollback_started", false),
        v1::RolloutState::RolledBack => ("rollback_completed", true),
        v1::RolloutState::RollbackPaused => ("rollback_paused", false),
    };
    let reasons = [&rollout.stop_reason, &rollout.rollback_reason, &rollout.waiting_reason];
    let reason = reasons.into_iter().find(|reason| !reason.is_empty());
    let message = reason.cloned().unwrap_or_else(|| state.replace('_', " "));
    let at = time(service.updated_at);
    Some(UpdateStatus { state, completed_at: is_over.then(|| at.clone()), started_at: at, message })
}

/// `POST /services/create`.
pub async fn create(client: &Client, request: &DockerRequest) -> Answer {
    let docker: model::ServiceSpec = request.json()?;
    let ids = ObjectIds::read(client).await?;
    let ReceivedSpec { spec, volumes, profiles, warnings, force: _ } = spec::from_docker(docker, &ids)?;
    let warnings = with_login_warning(warnings, request);
    create_volumes(client, volumes).await?;
    create_profiles(client, &profiles).await?;
    let service = client.services().create(ServiceId(new_id()), &spec).await?;
    created(&json!({"ID": service.id, "Warnings": warnings}))
}

/// `POST /services/ID/update`, also to the previous revision.
pub async fn update(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let version = request.version()?;
    match request.text("rollback") {
        None => {}
        Some("previous") => {
            client.services().rollback(reference, None, Some(version)).await?;
            return ok(&json!({"Warnings": null}));
        }
        Some(other) => {
            let other: String = other.chars().take(64).collect();
            let message = format!("invalid rollback option {other:?}: there is only previous");
            return Err(DockerError::invalid(message));
        }
    }
    let docker: model::ServiceSpec = request.json()?;
    let (services, ids) = (client.services(), ObjectIds::read(client));
    let (service, ids) = futures::try_join!(services.get(reference), ids)?;
    // What Docker cannot say is kept as it is in this version of the service.
    if service.version != version {
        let message =
            format!("update out of sequence: the service has version {}, not {version}", service.version);
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    let before = stored_service_spec(service.spec.unwrap_or_default())?;
    let ReceivedSpec { spec, volumes, profiles, warnings, force } = spec::updated(&before, docker, &ids)?;
    let warnings = with_login_warning(warnings, request);
    create_volumes(client, volumes).await?;
    create_profiles(client, &profiles).await?;
    client.services().update(&service.id, &spec, Some(version), force).await?;
    ok(&json!({"Warnings": warnings}))
}

/// `DELETE /services/ID`.
pub async fn remove(client: &Client, reference: &str) -> Answer {
    client.services().remove(reference, None, false).await?;
    empty(StatusCode::OK)
}

/// Adds one if the request has a login.
pub fn with_login_warning(mut warnings: Vec<String>, request: &DockerRequest) -> Vec<String> {
    if request.has_registry_auth {
        let message = "the login of the request is not stored: nodes use those of `warren registry login`";
        warnings.push(message.to_owned());
    }
    warnings
}

/// Creates the volumes that mounts describe and that do not exist, as a node of Docker does with the first task.
pub async fn create_volumes(client: &Client, volumes: Vec<MountedVolume>) -> Result<(), DockerError> {
    if volumes.is_empty() {
        return Ok(());
    }
    let existing = client.volumes().list(VolumeListOptions::default()).await?;
    let is_new = |volume: &MountedVolume| existing.iter().all(|existing| existing.name != volume.name);
    for MountedVolume { name, driver, options, labels } in volumes.into_iter().filter(is_new) {
        let name = name.parse().map_err(DockerError::invalid)?;
        let (id, node) = (VolumeId(new_id()), String::new());
        let volume = NewVolume { id, name, driver, options, labels, node, reuse: false };
        client.volumes().create(volume).await?;
    }
    Ok(())
}

/// Creates the configs of seccomp profiles that do not exist.
pub async fn create_profiles(client: &Client, profiles: &[SeccompConfig]) -> Result<(), DockerError> {
    for profile in profiles {
        client.ensure_seccomp_config(SecretObjectId(new_id()), profile).await?;
    }
    Ok(())
}

/// The id of a new object.
pub fn new_id() -> Id {
    Id(rand::rng().random())
}

/// How long the removal of an object waits for services that are being removed.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time between two attempts: an event may be missed.
const REMOVAL_PAUSE: Duration = Duration::from_secs(1);

/// Removes an object that services use. Those that are being removed use it until their tasks have ended, while
/// Docker's CLI removes a stack as if they were gone.
pub async fn remove_when_unused<T, F>(client: &Client, remove: impl Fn() -> F) -> Result<T, DockerError>
where
    F: Future<Output = Result<T, warren_client::Error>>,
{
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    let kind = "service".to_owned();
    let query = EventQuery { kind, follow: true, start: EventStart::New, ..EventQuery::default() };
    let mut events = client.cluster().events(query);
    loop {
        let error = match remove().await {
            Ok(removed) => return Ok(removed),
            Err(error) => DockerError::from(error),
        };
        let is_used = error.status == StatusCode::CONFLICT && Instant::now() < deadline;
        if !is_used {
            return Err(error);
        }
        let removing = client.services().summaries_as(|service| service.removing).await?;
        if !removing.contains(&true) {
            return Err(error);
        }
        match timeout(REMOVAL_PAUSE, events.next()).await {
            Ok(Ok(Some(_))) | Err(_) => {}
            // There are no events now.
            Ok(_) => sleep(REMOVAL_PAUSE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{ServiceSpec, TaskSpec};

    use super::*;

    fn of_defaults() -> v1::Service {
        let spec = ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("nginx:1.27".parse().unwrap()));
        v1::Service {
            id: "s1".to_owned(),
            version: 7,
            created_at: 1_700_000_000_000,
            updated_at: 1_700_000_001_500,
            spec: Some((&spec).into()),
            revision: 1,
            virtual_addresses: [("default".to_owned(), "10.0.0.2".to_owned())].into(),
            ..Default::default()
        }
    }

    fn shown(defaults: DefaultFields) -> String {
        let networks = [("default".to_owned(), "n0".to_owned())].into();
        let ids = ObjectIds { networks, ..ObjectIds::default() };
        let status = ServiceStatus { running_tasks: 1, desired_tasks: 1, completed_tasks: 0 };
        let service = show(of_defaults(), &ids, defaults).unwrap();
        serde_json::to_string(&Service { service_status: Some(status), ..service }).unwrap()
    }

    #[test]
    fn lists_leave_out_defaults() {
        let expected = [
            r#"{"ID":"s1","Version":{"Index":7},"#,
            r#""CreatedAt":"2023-11-14T22:13:20.000Z","UpdatedAt":"2023-11-14T22:13:21.500Z","#,
            r#""Spec":{"Name":"web","Labels":{},"TaskTemplate":{"#,
            r#""ContainerSpec":{"Image":"nginx:1.27","Isolation":"default"},"#,
            r#""Resources":{},"Placement":{},"ForceUpdate":0,"Runtime":"container","Networks":[{"Target":"n0"}]},"#,
            r#""Mode":{"Replicated":{"Replicas":1}},"EndpointSpec":{"Mode":"vip"}},"#,
            r#""Endpoint":{"Spec":{"Mode":"vip"},"VirtualIPs":[{"NetworkID":"n0","Addr":"10.0.0.2/32"}]},"#,
            r#""ServiceStatus":{"RunningTasks":1,"DesiredTasks":1,"CompletedTasks":0}}"#,
        ];
        assert_eq!(shown(DefaultFields::LeftOut), expected.concat());
    }

    #[test]
    fn inspect_shows_defaults() {
        let shown = shown(DefaultFields::Shown);
        for field in ["StopGracePeriod", "Init", "RestartPolicy", "UpdateConfig", "RollbackConfig"] {
            assert!(shown.contains(&format!("\"{field}\":")), "{field} is not in {shown}");
        }
    }
}
