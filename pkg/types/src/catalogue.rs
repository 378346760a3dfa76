//! The catalogue of a network: its services, and where their endpoints are. Managers send it to the nodes that run
//! tasks in the network; names, virtual addresses and isolation are made from it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::name::{ParseNameError, names};
use crate::network::MAX_ALIASES;
use crate::text::serde_as_text;
use crate::{DnsLabel, EndpointMode, NetworkId, NetworkName, Protocol, ServiceName, Violations};

names! {
    /// The name of a port, as in `_http._tcp.web`: of the form of IANA's service names (RFC 6335).
    PortName:
        "a port name (1 to 15 of a-z, 0-9 and '-', at least one letter, no '-' at an end or beside another)",
        is_port_name;
}

fn is_port_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=15).contains(&text.len())
        && text.bytes().all(is_allowed)
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.contains("--")
}

/// The services of one network and their endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Catalogue {
    /// The network.
    pub network: NetworkId,
    /// Its name.
    pub name: NetworkName,
    /// Its number, from 1.
    pub number: u32,
    /// There is no way out of the network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal: bool,
    /// Every service that is attached to the network.
    pub services: BTreeMap<ServiceName, CatalogueService>,
}

/// One service of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CatalogueService {
    /// Its further names on this network.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub aliases: BTreeSet<DnsLabel>,
    /// What its name resolves to.
    pub mode: EndpointMode,
    /// Its virtual address on this network; `None` while the range for them is exhausted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_address: Option<Ipv4Addr>,
    /// The ports of its containers that are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServicePort>,
    /// In the catalogue of [`INGRESS_NETWORK`](crate::INGRESS_NETWORK): the numbers of the nodes that open its ports;
    /// `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_nodes: Option<BTreeSet<u16>>,
    /// Its tasks, in order of slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
}

/// A port on which the containers of a service listen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePort {
    /// Port in the container.
    pub port: u16,
    /// Transport.
    pub protocol: Protocol,
    /// Its name in SRV records, beside its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<PortName>,
    /// In the catalogue of [`INGRESS_NETWORK`](crate::INGRESS_NETWORK): the port of nodes that leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<NonZeroU16>,
    /// [`PublishedPort::prefer_local`](crate::PublishedPort::prefer_local).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefer_local: bool,
    /// [`PublishedPort::client_affinity`](crate::PublishedPort::client_affinity).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_affinity: bool,
}

/// One task of the service. Its address belongs to the network also while it is not ready; names and virtual addresses
/// lead to it only when it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// The slot of the task; for a global service the number of its node.
    pub slot: u32,
    /// The address of the task.
    pub address: Ipv4Addr,
    /// It gets traffic.
    pub ready: bool,
}

/// The stable name of the tasks in a slot: `web-1`. It is no DNS label when the service's name is too long.
pub fn instance_name(service: &ServiceName, slot: u32) -> String {
    format!("{service}-{slot}")
}

/// The service and slot of an instance name that [`instance_name`] could have made.
pub fn split_instance_name(text: &str) -> Option<(&str, u32)> {
    let (service, slot) = text.rsplit_once('-')?;
    Some((service, parse_slot(slot)?))
}

/// A slot in its one spelling.
pub fn parse_slot(text: &str) -> Option<u32> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_canonical)
}

impl Catalogue {
    /// Endpoints whose instance name is the name of another service, which wins: `kafka-1` beside `kafka`.
    pub fn shadowed_instances(&self) -> impl Iterator<Item = (&ServiceName, &ServiceName, u32)> {
        self.services.keys().filter_map(|other| {
            let (service, slot) = split_instance_name(other.as_str())?;
            let (service, found) = self.services.get_key_value(service)?;
            found.endpoints.iter().any(|endpoint| endpoint.slot == slot).then_some((other, service, slot))
        })
    }

    /// All violations: what no manager sends, and a node must not act upon.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.number == 0 {
            wrong.add("number", "0 is not a network number; they count from 1");
        }
        let mut owners: BTreeMap<Ipv4Addr, &ServiceName> = BTreeMap::new();
        for (name, service) in &self.services {
            let path = format!("services[{:?}]", name.as_str());
            for alias in service.aliases.iter().filter(|alias| self.services.contains_key(alias.as_str())) {
                let path = format!("{path}.aliases[{:?}]", alias.as_str());
                wrong.add(path, "is the name of a service on the same network; choose another alias");
            }
            wrong.nest(&path, service.validate());
            let endpoints = service.endpoints.iter().enumerate();
            let endpoints =
                endpoints.map(|(i, endpoint)| (format!("endpoints[{i}].address"), endpoint.address));
            let virtual_address =
                service.virtual_address.map(|address| ("virtualAddress".to_owned(), address));
            for (field, address) in virtual_address.into_iter().chain(endpoints) {
                if let Some(owner) = owners.insert(address, name) {
                    wrong.add(format!("{path}.{field}"), format!("{address} belongs to {owner} already"));
                }
            }
        }
        wrong
    }
}

impl CatalogueService {
    fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.aliases.len() > MAX_ALIASES {
            wrong.add("aliases", format!("{} are more than {MAX_ALIASES}", self.aliases.len()));
        }
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (i, port) in self.ports.iter().enumerate() {
            if port.port == 0 {
                wrong.add(format!("ports[{i}].port"), "0 is not a port");
            }
            if !numbers.insert((port.port, port.protocol, port.published)) {
                wrong.add(format!("ports[{i}].port"), format!("{} is listed twice", port.port));
            }
            if let Some(name) = port.name.as_ref().filter(|name| !names.insert((*name, port.protocol))) {
                wrong.add(format!("ports[{i}].name"), format!("{name} is the name of another port"));
            }
        }
        if !self.endpoints.is_sorted_by_key(|endpoint| endpoint.slot) {
            wrong.add("endpoints", "are not in order of slots");
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Id;

    fn catalogue(change: impl FnOnce(&mut Catalogue)) -> Catalogue {
        let endpoint = |slot, host| Endpoint { slot, address: Ipv4Addr::new(10, 210, 1, host), ready: true };
        let port = |port, name: &str| {
            let name = Some(name).filter(|name| !name.is_empty()).map(|name| name.parse().unwrap());
            ServicePort {
                port,
                protocol: Protocol::Tcp,
                name,
                published: None,
                prefer_local: false,
                client_affinity: false,
            }
        };
        let web = CatalogueService {
            aliases: ["www".parse().unwrap()].into(),
            virtual_address: Some(Ipv4Addr::new(10, 210, 224, 1)),
            ports: vec![port(80, "http"), port(8080, "")],
            endpoints: vec![endpoint(1, 2), endpoint(2, 3)],
            ..CatalogueService::default()
        };
        let mut catalogue = Catalogue {
            network: NetworkId(Id(1)),
            name: "default".parse().unwrap(),
            number: 1,
            internal: false,
            services: [("web".parse().unwrap(), web)].into(),
        };
        change(&mut catalogue);
        catalogue
    }

    fn check(change: impl FnOnce(&mut Catalogue, &mut CatalogueService), expected: &[&str]) {
        let catalogue = catalogue(|catalogue| {
            let mut web = catalogue.services.remove("web").unwrap();
            change(catalogue, &mut web);
            catalogue.services.insert("web".parse().unwrap(), web);
        });
        let found = catalogue.validate();
        assert_eq!(found.0.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), expected, "{found}");
    }

    #[test]
    fn invalid_catalogue_is_refused() {
        check(|_, _| {}, &[]);
        check(|catalogue, _| catalogue.number = 0, &["number"]);
        check(
            |_, web| web.aliases = ["web".parse().unwrap()].into(),
            &["services[\"web\"].aliases[\"web\"]"],
        );
        let many = (0..=MAX_ALIASES).map(|i| format!("a{i}").parse().unwrap());
        check(|_, web| web.aliases = many.collect(), &["services[\"web\"].aliases"]);
        check(|_, web| web.ports[0].port = 0, &["services[\"web\"].ports[0].port"]);
        check(|_, web| web.ports[1].port = 80, &["services[\"web\"].ports[1].port"]);
        check(|_, web| web.ports[1].name = web.ports[0].name.clone(), &["services[\"web\"].ports[1].name"]);
        check(|_, web| web.endpoints.reverse(), &["services[\"web\"].endpoints"]);
        check(
            |_, web| web.endpoints[1].address = web.endpoints[0].address,
            &["services[\"web\"].endpoints[1].address"],
        );
        check(
            |catalogue, web| {
                catalogue
                    .services
                    .insert("db".parse().unwrap(), CatalogueService { ports: vec![], ..web.clone() });
            },
            &[
                "services[\"web\"].virtualAddress",
                "services[\"web\"].endpoints[0].address",
                "services[\"web\"].endpoints[1].address",
            ],
        );
    }

    #[test]
    fn instance_name_of_another_service_is_shadowed() {
        let catalogue = catalogue(|catalogue| {
            for name in ["web-1", "web-7", "db-1"] {
                catalogue.services.insert(name.parse().unwrap(), CatalogueService::default());
            }
        });
        let found: Vec<String> =
            catalogue.shadowed_instances().map(|(by, of, slot)| format!("{by} {of} {slot}")).collect();
        assert_eq!(found, ["web-1 web 1"]);
    }

    #[test]
    fn instance_name_has_one_spelling() {
        let service: ServiceName = "shop-web".parse().unwrap();
        assert_eq!(split_instance_name(&instance_name(&service, 12)), Some(("shop-web", 12)));
        for text in ["web", "web-", "web-01", "web-+1", "web-x", "web-4294967296"] {
            assert_eq!(split_instance_name(text), None, "{text}");
        }
    }

    #[test]
    fn port_name_is_no_number() {
        for good in ["http", "a", "grpc-web", "3proxy", "abcdefghijklmno"] {
            assert!(good.parse::<PortName>().is_ok(), "{good}");
        }
        for bad in ["", "80", "-a", "a-", "a--b", "Http", "a_b", "abcdefghijklmnop"] {
            assert!(bad.parse::<PortName>().is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn generated_catalogue_is_valid_and_survives_json(catalogue in crate::strategies::catalogues(1)) {
            proptest::prop_assert_eq!(catalogue.validate().to_string(), "");
            let json = serde_json::to_string(&catalogue).unwrap();
            proptest::prop_assert_eq!(serde_json::from_str::<Catalogue>(&json).unwrap(), catalogue);
        }
    }
}
