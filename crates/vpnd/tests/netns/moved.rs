//! Behaviour: a gateway that gets another address announces it, and who was connected meanwhile
//! finds it there, at once and after the next start, with the profile of before. What a profile
//! forbids is not kept.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::client::Client;
use crate::gateway::{Gateway, Login, edit_toml, must, strings};
use crate::lab::{CAMPUS_V4, GATEWAY_V4, Lab, UPLINK, eventually};
use crate::traffic::ping_until;

/// Limit for whatever a test waits for; it goes on as soon as that is there.
const LIMIT: Duration = Duration::from_secs(60);
const NEW: &str = "198.18.0.9";
const KEPT: &str = "from now on the gateway is at 198.18.0.9:4433";

/// A profile that names the gateway by its IPv4 address alone.
fn by_address(login: &Login) {
    edit_toml(&login.profile, |profile| {
        profile["server"]["addresses"] = strings(&[&format!("{GATEWAY_V4}:4433")]);
    });
}

/// Gives the gateway's machine another outer address in place of the one that it has.
fn move_gateway(lab: &Lab) {
    lab.gateway.ip_batch(&format!(
        "addr del {GATEWAY_V4}/24 dev {UPLINK}\n\
         addr add {NEW}/24 dev {UPLINK}\n\
         route replace default via 198.18.0.1 dev {UPLINK}\n"
    ));
}

/// The files of client 1's state directory that hold addresses.
fn kept(lab: &Lab) -> Vec<PathBuf> {
    let all = fs::read_dir(lab.path("state1")).expect("the client has made it");
    let paths = all.map(|entry| entry.expect("it can be read").path());
    paths.filter(|path| path.to_string_lossy().contains("/gateway-")).collect()
}

#[test]
fn a_moved_gateway_is_found_by_earlier_clients_only() {
    let Some(lab) = Lab::new(2) else { return };
    let (gateway, ann) = Gateway::for_ann(&lab);
    by_address(&ann);
    let before = fs::read_to_string(&ann.profile).expect("it is there");
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    gateway.configure("server.addresses", strings(&[&format!("{NEW}:4433")]));
    must(gateway.ask(&["reload"]));
    eventually("the client keeps the new address", LIMIT, || {
        one.process().output().contains(KEPT).then_some(())
    });
    move_gateway(&lab);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    one.interrupt();

    // The next start knows it, too, and from no other file than its own.
    let mut again = Client::connect(&lab, 1, &ann);
    ping_until(again.namespace(), CAMPUS_V4.into(), LIMIT);
    assert!(!again.process().output().contains(KEPT), "it was said once: {}", again.process().output());
    again.interrupt();
    assert_eq!(fs::read_to_string(&ann.profile).expect("it is there"), before, "the profile is its owner's");
    let kept = kept(&lab);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(fs::read_to_string(&kept[0]).expect("it can be read"), format!("{NEW}:4433\n"));
    fs::remove_file(&kept[0]).expect("it is there");
    Client::trying(&lab, 1, &ann, "does not answer");
    // New profiles name the new address, and the name that the certificate has.
    let profile = fs::read_to_string(gateway.add_user("bob").profile).expect("it was just made");
    assert!(profile.contains("addresses = [\"198.18.0.9:4433\"]"), "{profile}");
    assert!(profile.contains(&format!("name = \"{GATEWAY_V4}\"")), "{profile}");
}

#[test]
fn a_profile_that_forbids_it_keeps_its_addresses() {
    let Some(lab) = Lab::new(1) else { return };
    let mut gateway = Gateway::init(&lab);
    gateway.configure("server.addresses", strings(&[&format!("{NEW}:4433")]));
    let ann = gateway.add_user("ann");
    gateway.start();
    by_address(&ann);
    edit_toml(&ann.profile, |profile| {
        profile["server"].as_table_mut().expect("a section").insert("renew".to_owned(), false.into());
    });
    let mut one = Client::connect(&lab, 1, &ann);
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    let other = [format!("{NEW}:4433"), format!("{GATEWAY_V4}:4433")];
    gateway.configure("server.addresses", strings(&other.each_ref().map(String::as_str)));
    must(gateway.ask(&["reload"]));
    ping_until(one.namespace(), CAMPUS_V4.into(), LIMIT);
    assert!(!one.process().output().contains("from now on"), "{}", one.process().output());
    assert!(kept(&lab).is_empty(), "{:?}", kept(&lab));
}
