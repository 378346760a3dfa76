//! The HTTP endpoint of a node for metrics and health.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warren_telemetry::{MetricsServer, Telemetry};

use crate::{CommandError, ExitKind, error_chain};

/// Only on this machine: metrics show what runs here.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// The metrics listener, from the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct MetricsArgs {
    /// Address for /metrics, /health and /ready over plain HTTP, or none [default: 127.0.0.1:9090]
    #[arg(long, env = "WARREN_METRICS_LISTEN", value_name = "IP:PORT")]
    pub metrics_listen: Option<MetricsListen>,
}

/// Where metrics are served: `127.0.0.1:9090` or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsListen {
    /// No listener.
    None,
    /// This address. With port 0 the kernel chooses the port; the log has it.
    Address(SocketAddr),
}

impl Default for MetricsListen {
    fn default() -> Self {
        Self::Address(DEFAULT_LISTEN)
    }
}

impl FromStr for MetricsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            text => {
                let address =
                    text.parse().map_err(|_| "give IP:PORT like 127.0.0.1:9090, or none".to_owned());
                address.map(Self::Address)
            }
        }
    }
}

impl fmt::Display for MetricsListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl Serialize for MetricsListen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MetricsListen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl MetricsListen {
    /// Serves `telemetry` until the returned server is dropped; `None` without a listener.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn serve(self, telemetry: &Telemetry) -> Result<Option<MetricsServer>, CommandError> {
        let Self::Address(address) = self else { return Ok(None) };
        match MetricsServer::start(address, telemetry.clone()).await {
            Ok(server) => Ok(Some(server)),
            Err(error) => {
                let hint =
                    "choose another address with --metrics-listen IP:PORT, or give --metrics-listen none";
                let taken = error.source.kind() == std::io::ErrorKind::AddrInUse;
                let exit = if taken { ExitKind::Conflict } else { ExitKind::Failed };
                Err(CommandError::new(exit, "cannot start the node", error_chain(&error), hint))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        metrics: MetricsArgs,
    }

    fn parse_args(value: &str) -> Result<Option<MetricsListen>, clap::Error> {
        Cli::try_parse_from(["warren", "--metrics-listen", value]).map(|cli| cli.metrics.metrics_listen)
    }

    #[test]
    fn listen_address_or_none_round_trips() {
        for text in ["none", "127.0.0.1:9090", "0.0.0.0:0", "[::1]:9100"] {
            let listen = parse_args(text).unwrap().unwrap();
            let kept = toml::Value::try_from(listen).unwrap();
            assert_eq!((kept.as_str(), kept.clone().try_into::<MetricsListen>()), (Some(text), Ok(listen)));
        }
        assert_eq!(Cli::try_parse_from(["warren"]).unwrap().metrics, MetricsArgs::default());
        assert_eq!(MetricsListen::default().to_string(), "127.0.0.1:9090");
        for bad in ["", "9090", "localhost:9090", "None", "127.0.0.1", "127.0.0.1:70000"] {
            let error = parse_args(bad).unwrap_err().to_string();
            assert!(error.contains("--metrics-listen") && error.contains("or none"), "{error}");
        }
    }

    #[tokio::test]
    async fn address_in_use_error_names_flag() {
        let telemetry = Telemetry::with_components(&[]);
        assert!(MetricsListen::None.serve(&telemetry).await.unwrap().is_none());
        let any: MetricsListen = "127.0.0.1:0".parse().unwrap();
        let server = any.serve(&telemetry).await.unwrap().unwrap();
        let failure = MetricsListen::Address(server.address()).serve(&telemetry).await.unwrap_err();
        assert_eq!(failure.kind, ExitKind::Conflict);
        assert!(failure.why.contains(&server.address().to_string()), "{failure}");
        assert!(failure.hint.contains("--metrics-listen"), "{failure}");
    }
}
