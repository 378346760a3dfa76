//! The ids of what specs name. Docker's specs refer to secrets, configs and networks by id, those of Warren by name.

use std::collections::BTreeMap;

use warren_client::{Client, Error};
use warren_types::SecretObjectKind;

/// Ids by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectIds {
    pub secrets: BTreeMap<String, String>,
    pub configs: BTreeMap<String, String>,
    pub networks: BTreeMap<String, String>,
}

impl ObjectIds {
    /// Those of the cluster.
    pub async fn read(client: &Client) -> Result<Self, Error> {
        let of_kind = |kind| async move {
            let all = client.secret_objects(kind).list().await?;
            Ok(all.into_iter().map(|object| (object.name, object.id)).collect())
        };
        let (secrets, configs) = (of_kind(SecretObjectKind::Secret), of_kind(SecretObjectKind::Config));
        let networks = Self::read_networks(client);
        let (secrets, configs, Self { networks, .. }) = futures::try_join!(secrets, configs, networks)?;
        Ok(Self { secrets, configs, networks })
    }

    /// Those of the networks alone.
    pub async fn read_networks(client: &Client) -> Result<Self, Error> {
        let all = client.networks().list().await?.into_iter();
        Ok(Self { networks: all.map(|network| (network.name, network.id)).collect(), ..Self::default() })
    }
}

/// The id of the object `name`, or its name if it is not known.
pub fn id_of(ids: &BTreeMap<String, String>, name: &str) -> String {
    ids.get(name).map_or(name, String::as_str).to_owned()
}

/// The name of the object that a name or an id refers to; a text that is neither is left to the manager.
pub fn name_of<'a>(ids: &'a BTreeMap<String, String>, text: &'a str) -> &'a str {
    if ids.contains_key(text) {
        return text;
    }
    ids.iter().find(|(_, id)| *id == text).map_or(text, |(name, _)| name)
}
