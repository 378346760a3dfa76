//! `/secrets` and `/configs`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use warren_client::{Client, NewSecretObject};
use warren_proto::v1;
use warren_types::base64::{decode_base64, encode_base64};
use warren_types::{SecretObjectId, SecretObjectKind};
use zeroize::Zeroizing;

use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{Answer, created, empty, joined, meta, ok, to_value};
use crate::services::{new_id, remove_when_unused};

const FILTERS: [&str; 4] = ["id", "label", "name", "names"];
/// The most bytes of a secret and of a config, as in Docker.
const MAX_SECRET: usize = 500 << 10;
const MAX_CONFIG: usize = 1000 << 10;

/// The spec of a secret or config. It has no `Debug`: the data may be secret.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct SecretSpec {
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    data: Option<String>,
    driver: Option<Value>,
    templating: Option<Value>,
}

impl SecretSpec {
    /// Its data; `None` without any.
    fn read_data(&mut self, kind: SecretObjectKind) -> Result<Option<Zeroizing<Vec<u8>>>, DockerError> {
        if self.driver.is_some() {
            let message = "Driver: secrets are stored by the managers; leave it out";
            return Err(DockerError::unsupported(message));
        }
        if self.templating.is_some() {
            let message = "Templating: in Warren it is a property of the mount of a service, not of the data; use \
                           `warren service create --config NAME,template=true`";
            return Err(DockerError::unsupported(message));
        }
        let Some(text) = self.data.take().map(Zeroizing::new) else { return Ok(None) };
        let data = decode_base64(&text).map(Zeroizing::new);
        let data = data.ok_or_else(|| DockerError::invalid("Data: is not base64"))?;
        let most = if kind == SecretObjectKind::Secret { MAX_SECRET } else { MAX_CONFIG };
        if data.len() > most {
            let message = format!("Data: a {kind} has at most {most} bytes, not {}", data.len());
            return Err(DockerError::invalid(message));
        }
        Ok(Some(data))
    }
}

/// `GET /secrets` or `/configs`.
pub async fn list(client: &Client, kind: SecretObjectKind, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let mut shown = Vec::new();
    for object in client.secret_objects(kind).list().await? {
        let is_accepted = filters.id(&object.id)
            && filters.name_prefix(&object.name)
            && filters.any("names", |name| name == object.name)
            && filters.labels("label", |key| object.labels.get(key));
        if is_accepted {
            shown.push(json(client, kind, &object).await?);
        }
    }
    ok(&shown)
}

/// `GET /secrets/ID` or `/configs/ID`.
pub async fn inspect(client: &Client, kind: SecretObjectKind, reference: &str) -> Answer {
    let object = client.secret_objects(kind).get(reference).await?;
    ok(&json(client, kind, &object).await?)
}

/// The object, with the data of a config.
async fn json(
    client: &Client,
    kind: SecretObjectKind,
    object: &v1::SecretObject,
) -> Result<Value, DockerError> {
    let mut spec = json!({"Name": object.name, "Labels": object.labels});
    if kind == SecretObjectKind::Config {
        let read = client.secret_objects(kind).read(&object.id, None).await?;
        spec = joined(spec, json!({"Data": encode_base64(&read.data)}));
    }
    let meta = to_value(&meta(object.version, object.created_at, object.updated_at));
    Ok(joined(meta, json!({"ID": object.id, "Spec": spec})))
}

/// `POST /secrets/create` or `/configs/create`.
pub async fn create(client: &Client, kind: SecretObjectKind, request: &DockerRequest) -> Answer {
    let mut spec: SecretSpec = request.json()?;
    let data = spec.read_data(kind)?.unwrap_or_default();
    let name = spec.name.unwrap_or_default();
    let name = name.parse().map_err(|error| DockerError::invalid(format!("Name: {error}")))?;
    let (id, labels) = (SecretObjectId(new_id()), spec.labels.unwrap_or_default());
    let object = client.secret_objects(kind).create(NewSecretObject { id, name, labels, data }).await?;
    created(&json!({"ID": object.id}))
}

/// `POST /secrets/ID/update` or `/configs/ID/update`: other data is a new version, which the services that use it
/// get.
pub async fn update(
    client: &Client,
    kind: SecretObjectKind,
    reference: &str,
    request: &DockerRequest,
) -> Answer {
    let version = request.version()?;
    let mut spec: SecretSpec = request.json()?;
    let data = spec.read_data(kind)?;
    let object = client.secret_objects(kind).get(reference).await?;
    if spec.name.is_some_and(|name| name != object.name) {
        return Err(DockerError::invalid("Name: cannot be changed"));
    }
    if spec.labels.unwrap_or_default() != object.labels {
        let message = format!("Labels: those of a {kind} cannot be changed in this version");
        return Err(DockerError::unsupported(message));
    }
    if object.version != version {
        let message =
            format!("update out of sequence: the {kind} has version {}, not {version}", object.version);
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    if let Some(data) = data {
        client.secret_objects(kind).update(&object.id, data, Some(version)).await?;
    }
    empty(StatusCode::OK)
}

/// `DELETE /secrets/ID` or `/configs/ID`.
pub async fn remove(client: &Client, kind: SecretObjectKind, reference: &str) -> Answer {
    remove_when_unused(client, move || async move { client.secret_objects(kind).remove(reference).await })
        .await?;
    empty(StatusCode::NO_CONTENT)
}
