//! Keys outside of services.

use super::ShortForm::{External, Key};
use super::ValueForm::{AnyScalar, Bool, List, Map, MapOf, Pairs, Path, PathOrList, Text, Unchecked};
use super::{SchemaKey, honoured, partly, refused, warned};

const MODELS: &str = "Warren runs no models; run the model as a service with an image";
const ADDRESSES: &str = "the cluster assigns addresses from its ranges (`warren cluster update --range-add`)";
const DRIVER_OPTIONS: &str = "the network of the cluster has no options per network";

/// All keys, each after those that contain it.
pub(super) const KEYS: &[SchemaKey] = &[
    warned("version", AnyScalar, "the format has no versions; leave it out"),
    partly("name", Text, "the name of the stack, unless the command gives another one"),
    honoured("include", List),
    honoured("include[]", Map).short(Key("path")),
    honoured("include[].path", PathOrList),
    honoured("include[].env_file", PathOrList),
    honoured("include[].project_directory", Path),
    refused("models", MODELS),
    honoured("networks", MapOf),
    partly("networks.*", Map, "a network `STACK_NAME`, unless `name` or `external` is given"),
    honoured("networks.*.name", Text),
    partly("networks.*.driver", Text, "`overlay`, `bridge` and `default` are the network of the cluster"),
    warned("networks.*.driver_opts", MapOf, DRIVER_OPTIONS),
    warned("networks.*.driver_opts.*", AnyScalar, DRIVER_OPTIONS),
    warned("networks.*.ipam", Unchecked, ADDRESSES),
    partly("networks.*.external", Bool, "the network must exist").short(External),
    honoured("networks.*.external.name", Text),
    honoured("networks.*.internal", Bool),
    partly("networks.*.enable_ipv4", Bool, "only `true`: all networks have IPv4 addresses"),
    partly("networks.*.enable_ipv6", Bool, "only `false`: this version has no IPv6 addresses"),
    warned("networks.*.attachable", Bool, "only tasks of services are in a network"),
    honoured("networks.*.labels", Pairs),
    honoured("volumes", MapOf),
    partly("volumes.*", Map, "a volume `STACK_NAME`, unless `name` or `external` is given"),
    honoured("volumes.*.name", Text),
    partly("volumes.*.driver", Text, "only `local`"),
    partly("volumes.*.driver_opts", MapOf, "options of the driver `local` of Warren, not of Docker"),
    honoured("volumes.*.driver_opts.*", AnyScalar),
    partly("volumes.*.external", Bool, "the volume must exist").short(External),
    honoured("volumes.*.external.name", Text),
    honoured("volumes.*.labels", Pairs),
    honoured("secrets", MapOf),
    partly("secrets.*", Map, "a secret `STACK_NAME`, unless `name` or `external` is given"),
    honoured("secrets.*.name", Text),
    honoured("secrets.*.environment", Text),
    honoured("secrets.*.file", Path),
    partly("secrets.*.external", Bool, "the secret must exist").short(External),
    honoured("secrets.*.external.name", Text),
    honoured("secrets.*.labels", Pairs),
    refused("secrets.*.driver", "the cluster stores all secrets, without drivers; use a file or a variable"),
    refused("secrets.*.driver_opts", "the cluster stores all secrets, without drivers; leave it out"),
    partly("secrets.*.template_driver", Text, "only `golang`: the templates of Warren"),
    honoured("configs", MapOf),
    partly("configs.*", Map, "a config `STACK_NAME`, unless `name` or `external` is given"),
    honoured("configs.*.name", Text),
    honoured("configs.*.content", Text),
    honoured("configs.*.environment", Text),
    honoured("configs.*.file", Path),
    partly("configs.*.external", Bool, "the config must exist").short(External),
    honoured("configs.*.external.name", Text),
    honoured("configs.*.labels", Pairs),
    partly("configs.*.template_driver", Text, "only `golang`: the templates of Warren"),
    honoured("services", MapOf),
];
