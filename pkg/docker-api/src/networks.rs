//! `/networks`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use warren_client::{Client, NewNetwork};
use warren_proto::v1;
use warren_types::{NetworkId, Violations};

use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{Answer, created, empty, ok, time};
use crate::services::{new_id, remove_when_unused};

const FILTERS: [&str; 7] = ["dangling", "driver", "id", "label", "name", "scope", "type"];
/// What a service names instead of networks, as networks: clients look for them before they name them.
const MODES: [&str; 2] = ["host", "none"];

/// A network to create.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NetworkCreate {
    name: Option<String>,
    driver: Option<String>,
    scope: Option<String>,
    internal: Option<bool>,
    attachable: Option<bool>,
    ingress: Option<bool>,
    config_only: Option<bool>,
    config_from: Option<ConfigFrom>,
    #[serde(rename = "IPAM")]
    ipam: Option<Ipam>,
    #[serde(rename = "EnableIPv4")]
    enable_ipv4: Option<bool>,
    #[serde(rename = "EnableIPv6")]
    enable_ipv6: Option<bool>,
    options: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ConfigFrom {
    network: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Ipam {
    driver: Option<String>,
    options: Option<BTreeMap<String, String>>,
    config: Option<Vec<Value>>,
}

/// `GET /networks`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let networks = client.networks().list().await?;
    let of_cluster =
        networks.iter().map(|network| (network.name.as_str(), network.id.as_str(), Some(network)));
    let all = of_cluster.chain(MODES.map(|mode| (mode, mode, None)));
    let accepted = all.filter(|(name, id, network)| {
        let is_built_in = network.is_none() || *name == warren_types::spec::DEFAULT_NETWORK;
        let is_unused = network.is_some_and(|network| network.services.is_empty());
        filters.id(id)
            && filters.name_part(name)
            && filters.any("driver", |driver| driver == driver_of(name, *network))
            && filters.any("scope", |scope| scope == "swarm")
            && filters.any("type", |kind| kind == if is_built_in { "builtin" } else { "custom" })
            && filters.any("dangling", |wanted| is_unused == matches!(wanted, "true" | "1"))
            && filters.labels("label", |key| network.and_then(|network| network.labels.get(key)))
    });
    let shown: Vec<Value> = accepted.map(|(name, _, network)| json(name, network)).collect();
    ok(&shown)
}

/// `GET /networks/ID`.
pub async fn inspect(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    if let Some(scope) = request.text("scope").filter(|scope| *scope != "swarm") {
        let scope: String = scope.chars().take(64).collect();
        let message =
            format!("network {reference} not found: all networks have the scope swarm, not {scope:?}");
        return Err(DockerError::not_found(message));
    }
    if MODES.contains(&reference) {
        return ok(&json(reference, None));
    }
    let network = client.networks().get(reference).await?;
    ok(&json(&network.name, Some(&network)))
}

fn driver_of<'a>(name: &'a str, network: Option<&v1::Network>) -> &'a str {
    match (network, name) {
        (Some(_), _) => "overlay",
        (None, "none") => "null",
        (None, mode) => mode,
    }
}

fn json(name: &str, network: Option<&v1::Network>) -> Value {
    let id = network.map_or(name, |network| &network.id);
    let labels = network.map(|network| network.labels.clone()).unwrap_or_default();
    json!({
        "Name": name, "Id": id, "Created": time(network.map_or(0, |network| network.created_at)),
        "Scope": "swarm", "Driver": driver_of(name, network), "EnableIPv4": true, "EnableIPv6": false,
        "IPAM": {"Driver": "default", "Options": null, "Config": []},
        "Internal": network.is_some_and(|network| network.internal),
        "Attachable": false, "Ingress": false, "ConfigFrom": {"Network": ""}, "ConfigOnly": false,
        "Containers": {}, "Options": {}, "Labels": labels,
    })
}

/// `POST /networks/create`.
pub async fn create(client: &Client, request: &DockerRequest) -> Answer {
    let (network, warning) = new_network(request.json()?)?;
    let network = client.networks().create(network).await?;
    created(&json!({"Id": network.id, "Warning": warning}))
}

fn new_network(docker: NetworkCreate) -> Result<(NewNetwork, &'static str), DockerError> {
    let NetworkCreate {
        name,
        driver,
        scope,
        internal,
        attachable,
        ingress,
        config_only,
        config_from,
        ipam,
        enable_ipv4,
        enable_ipv6,
        options,
        labels,
    } = docker;
    let mut wrong = Violations::default();
    let mut refuse = |is_set: bool, path: &str, message: &str| {
        if is_set {
            wrong.add(path, message);
        }
    };
    let differs = |text: Option<String>, known: &[&str]| {
        text.is_some_and(|text| !text.is_empty() && !known.contains(&text.as_str()))
    };
    refuse(
        differs(driver, &["overlay"]),
        "Driver",
        "all networks span the nodes of the cluster; give overlay",
    );
    refuse(differs(scope, &["swarm", "global"]), "Scope", "all networks span the cluster; give swarm");
    let is_set = ingress == Some(true);
    refuse(is_set, "Ingress", "published ports need no network of their own; leave it out");
    let from_config = config_from.is_some_and(|from| differs(from.network, &[]));
    refuse(config_only == Some(true), "ConfigOnly", "networks need no configuration; leave it out");
    refuse(from_config, "ConfigFrom", "networks need no configuration; leave it out");
    let ipam = ipam.unwrap_or_default();
    refuse(
        differs(ipam.driver, &["default"]),
        "IPAM.Driver",
        "there is one way to assign addresses; leave it out",
    );
    let message =
        "tasks have addresses of the ranges of the cluster (`cluster update --range-add`); leave it out";
    refuse(ipam.config.is_some_and(|config| !config.is_empty()), "IPAM.Config", message);
    refuse(ipam.options.is_some_and(|options| !options.is_empty()), "IPAM.Options", message);
    refuse(enable_ipv4 == Some(false), "EnableIPv4", "all networks have IPv4 addresses; leave it out");
    refuse(enable_ipv6 == Some(true), "EnableIPv6", "this version has no IPv6 addresses; leave it out");
    for key in options.iter().flatten().map(|(key, _)| key) {
        let message = match key.as_str() {
            "encrypted" => {
                "encryption is a setting of all networks: use `warren cluster update --data-plane wireguard`"
            }
            _ => "networks have no options of a driver; leave it out",
        };
        refuse(true, &format!("Options.{key}"), message);
    }
    let name = name.unwrap_or_default();
    let name = name.parse().map_err(|error| wrong.add("Name", error));
    let (Ok(name), true) = (name, wrong.0.is_empty()) else { return Err(wrong.into()) };
    let id = NetworkId(new_id());
    let (labels, internal) = (labels.unwrap_or_default(), internal.unwrap_or_default());
    let warning = match attachable {
        Some(true) => "Attachable has no effect: only tasks of services are in a network",
        _ => "",
    };
    Ok((NewNetwork { id, name, labels, internal }, warning))
}

/// `DELETE /networks/ID`.
pub async fn remove(client: &Client, reference: &str) -> Answer {
    if MODES.contains(&reference) {
        let message = format!("{reference} is a pre-defined network and cannot be removed");
        return Err(DockerError::new(StatusCode::FORBIDDEN, message));
    }
    remove_when_unused(client, move || async move { client.networks().remove(reference).await }).await?;
    empty(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(json: Value) -> Result<(NewNetwork, &'static str), String> {
        new_network(serde_json::from_value(json).unwrap()).map_err(|error| error.message)
    }

    #[test]
    fn request_of_the_cli_is_accepted() {
        let (network, warning) = create(json!({
            "Name": "back", "Driver": "overlay", "Scope": "", "EnableIPv6": false, "Internal": true,
            "Attachable": false,
            "Ingress": false, "ConfigOnly": false, "ConfigFrom": null, "Options": {}, "Labels": {"tier": "back"},
            "IPAM": {"Driver": "default", "Options": {}, "Config": []}, "CheckDuplicate": true, "Future": {"x": 1},
        }))
        .unwrap();
        assert_eq!((network.name.as_str(), network.internal, warning), ("back", true, ""));
        assert_eq!(network.labels["tier"], "back");
        let (_, warning) = create(json!({"Name": "x", "Attachable": true})).unwrap();
        assert!(warning.contains("has no effect"));
    }

    #[test]
    fn each_field_without_a_meaning_is_refused() {
        for (field, value) in [
            ("Driver", json!("bridge")),
            ("Scope", json!("local")),
            ("Ingress", json!(true)),
            ("ConfigOnly", json!(true)),
            ("ConfigFrom", json!({"Network": "x"})),
            ("EnableIPv6", json!(true)),
            ("EnableIPv4", json!(false)),
            ("Name", json!("No Name")),
        ] {
            let mut request = json!({"Name": "x"});
            request[field] = value;
            let error = create(request).unwrap_err();
            assert!(error.starts_with(&format!("{field}: ")), "{error}");
        }
        let error =
            create(json!({"Name": "x", "IPAM": {"Config": [{"Subnet": "10.0.0.0/24"}]}})).unwrap_err();
        assert!(error.starts_with("IPAM.Config: "), "{error}");
        let error = create(json!({"Name": "x", "Options": {"encrypted": ""}})).unwrap_err();
        assert!(error.contains("--data-plane wireguard"), "{error}");
    }
}
