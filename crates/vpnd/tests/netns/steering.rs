//! Behaviour: where the kernel does not steer datagrams to their shard, everything still arrives.

use std::time::Duration;

use crate::client::Client;
use crate::gateway::Gateway;
use crate::lab::{CAMPUS_V4, CAMPUS_V6, Lab};
use crate::traffic::{TEN_MB, ping_until, transfer};

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(30);

/// Control channels and data of four clients fall on three shards as a hash of their ports wants
/// it.
#[test]
fn shards_pass_on_what_the_kernel_does_not_steer() {
    let Some(lab) = Lab::new(4) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("offload.steering", false);
    gateway.configure("server.shards", 3);
    gateway.configure("policy.client_to_client", true);
    let logins = ["ann", "bob", "eve", "sam"].map(|name| gateway.add_user(name));
    gateway.start();
    let clients: Vec<_> =
        (1..).zip(&logins).map(|(number, login)| Client::connect(&lab, number, login)).collect();
    let status = gateway.status();
    assert_eq!((status["steering"].as_str(), status["shards"].as_u64()), (Some("hash"), Some(3)));
    for client in &clients {
        ping_until(client.namespace(), CAMPUS_V4.into(), 5 * SECOND);
        ping_until(client.namespace(), CAMPUS_V6.into(), 5 * SECOND);
    }
    for pair in clients.windows(2) {
        transfer(pair[0].namespace(), pair[1].namespace(), pair[1].v4(), TEN_MB / 5, LIMIT);
    }
    transfer(clients[0].namespace(), &lab.campus, CAMPUS_V4.into(), TEN_MB, LIMIT);
    assert_eq!(gateway.sessions().len(), 4);
}
