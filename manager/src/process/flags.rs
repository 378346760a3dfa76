//! What a manager can be told.

use std::net::SocketAddr;

use clap::Args;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use warren_log::Engine;
use warren_process::{Exit, Failure, as_text};
use warren_types::NodeName;

use super::{Advertise, WHAT};

/// What `manager init` remembers of the manager. `None` was not said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[group(skip)]
pub struct Flags {
    /// Where the manager listens [default: 0.0.0.0:8080]
    #[arg(long, env = "WARREN_LISTEN", value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Where other machines reach this one [default: the address it would reach them from]
    #[arg(long, env = "WARREN_ADVERTISE", value_name = "HOST[:PORT]")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub advertise: Option<Advertise>,
    /// Addresses for tasks, fixed when the cluster is made (repeatable) [default: 10.210.0.0/16]
    #[arg(long, env = "WARREN_CLUSTER_RANGE", value_name = "CIDR", value_delimiter = ',')]
    #[arg(value_parser = range)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_range: Vec<Ipv4Net>,
    /// What keeps the manager's log, redb or sled: fixed when the manager is made [default: redb]
    #[arg(long, env = "WARREN_LOG_ENGINE", value_name = "ENGINE")]
    #[serde(skip_serializing_if = "Option::is_none", with = "as_text")]
    pub log_engine: Option<Engine>,
    /// Vote for anybody although this manager's data is older than what it acknowledged: writes may be lost
    #[arg(long)]
    #[serde(skip)]
    pub accept_data_loss: bool,
    /// What people call it; a flag of the node as a whole.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
}

impl Flags {
    /// What is said now counts, else what was said at init.
    ///
    /// # Errors
    /// What is said now cannot be changed any more.
    pub(super) fn over(self, old: Flags) -> Result<Flags, Failure> {
        if !self.cluster_range.is_empty() && self.cluster_range != old.cluster_range {
            let list =
                |ranges: &[Ipv4Net]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let made = match old.cluster_range.as_slice() {
                [] => "the default range".to_owned(),
                given => list(given),
            };
            let said = list(&self.cluster_range);
            let why = format!("the cluster was made with {made}, and --cluster-range says {said}");
            return Err(Failure::new(Exit::Conflict, WHAT, why, "leave --cluster-range out"));
        }
        let made = old.log_engine.unwrap_or_default();
        if let Some(wanted) = self.log_engine.filter(|wanted| *wanted != made) {
            let why = format!("the manager's log was made with {made}, and --log-engine says {wanted}");
            return Err(Failure::new(Exit::Conflict, WHAT, why, "leave --log-engine out"));
        }
        Ok(Flags {
            listen: self.listen.or(old.listen),
            advertise: self.advertise.or(old.advertise),
            cluster_range: old.cluster_range,
            log_engine: old.log_engine,
            accept_data_loss: self.accept_data_loss,
            name: self.name.or(old.name),
        })
    }

    /// The flags of a machine that becomes a further manager.
    ///
    /// # Errors
    /// Something in them is the cluster's to say.
    pub(super) fn for_joining(self) -> Result<Flags, Failure> {
        if self.cluster_range.is_empty() {
            return Ok(self);
        }
        let why = "the cluster's ranges were fixed when it was made";
        Err(Failure::new(Exit::Usage, WHAT, why, "leave --cluster-range out"))
    }
}

fn range(text: &str) -> Result<Ipv4Net, String> {
    let net: Ipv4Net = text.parse().map_err(|_| "give an IPv4 range like 10.210.0.0/16".to_owned())?;
    match net == net.trunc() {
        true => Ok(net),
        false => Err(format!("has bits behind its prefix; the range is {}", net.trunc())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_nothing_behind_their_prefix() {
        assert!(range("10.210.0.0/16").is_ok());
        let wrong = "has bits behind its prefix; the range is 10.210.0.0/16";
        assert_eq!(range("10.210.0.1/16").unwrap_err(), wrong);
        assert!(range("10.210.0.0").is_err() && range("fd00::/8").is_err());
    }
}
