//! `/volumes`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use warren_client::{Client, Error, NewVolume, VolumeListOptions};
use warren_proto::v1;
use warren_types::VolumeId;

use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{Answer, created, empty, joined, ok, time};
use crate::services::new_id;

const FILTERS: [&str; 4] = ["dangling", "driver", "label", "name"];

/// A volume to create.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct VolumeCreate {
    name: Option<String>,
    driver: Option<String>,
    driver_opts: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    cluster_volume_spec: Option<Value>,
}

/// `GET /volumes`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let volumes = client.volumes().list(VolumeListOptions::default()).await?;
    let accepted = volumes.iter().filter(|volume| {
        let is_unused = volume.users.is_empty();
        filters.name_part(&volume.name)
            && filters.any("driver", |driver| driver == volume.driver)
            && filters.any("dangling", |wanted| is_unused == matches!(wanted, "true" | "1"))
            && filters.labels("label", |key| volume.labels.get(key))
    });
    let volumes: Vec<Value> = accepted.map(json).collect();
    ok(&json!({"Volumes": volumes, "Warnings": null}))
}

/// All volumes. The size of one that was not measured is -1.
pub async fn all(client: &Client) -> Result<Vec<Value>, Error> {
    let volumes = client.volumes().list(VolumeListOptions::default()).await?;
    let shown = volumes.iter().map(|volume| {
        let unknown = json!({"UsageData": {"Size": -1, "RefCount": volume.users.len()}});
        joined(unknown, json(volume))
    });
    Ok(shown.collect())
}

/// `GET /volumes/NAME`.
pub async fn inspect(client: &Client, reference: &str) -> Answer {
    ok(&json(&client.volumes().get(reference).await?))
}

fn json(volume: &v1::Volume) -> Value {
    let shown = json!({
        "Name": volume.name, "Driver": volume.driver, "Mountpoint": "", "CreatedAt": time(volume.created_at),
        "Labels": volume.labels, "Scope": "global", "Options": volume.options,
        "Status": {"node": volume.node_name, "users": volume.users},
    });
    match volume.size_bytes {
        Some(size) => joined(shown, json!({"UsageData": {"Size": size, "RefCount": volume.users.len()}})),
        None => shown,
    }
}

/// `POST /volumes/create`. As in Docker, a volume that exists with the same driver is returned.
pub async fn create(client: &Client, request: &DockerRequest) -> Answer {
    let VolumeCreate { name, driver, driver_opts, labels, cluster_volume_spec } = request.json()?;
    if cluster_volume_spec.is_some() {
        let message = "ClusterVolumeSpec: there are no volumes of CSI in this version; leave it out";
        return Err(DockerError::unsupported(message));
    }
    let id = VolumeId(new_id());
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| id.to_string());
    let driver = driver.unwrap_or_default();
    let existing = client.volumes().list(VolumeListOptions::default()).await?;
    if let Some(existing) = existing.iter().find(|volume| volume.name == name) {
        if driver.is_empty() || driver == existing.driver {
            return created(&json(existing));
        }
        let message = format!("a volume named {name} already exists with the driver {}", existing.driver);
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    let name = name.parse().map_err(|error| DockerError::invalid(format!("Name: {error}")))?;
    let (options, labels) = (driver_opts.unwrap_or_default(), labels.unwrap_or_default());
    let volume = NewVolume { id, name, driver, options, labels, node: String::new(), reuse: false };
    created(&json(&client.volumes().create(volume).await?))
}

/// `DELETE /volumes/NAME`. As in Docker, its data is deleted.
pub async fn remove(client: &Client, reference: &str) -> Answer {
    client.volumes().remove(reference, true).await?;
    empty(StatusCode::NO_CONTENT)
}
