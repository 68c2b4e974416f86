//! An idp process that was taken over says more of users than their source can say.

use vpnd_ipc::gateway::idp::{SourceAddresses, SourceLimits};

use super::*;

/// Attributes such as those of an Access-Accept.
fn attributes() -> AcceptAttributes {
    AcceptAttributes {
        limits: SourceLimits { session_s: Some(60), idle_s: Some(60) },
        addresses: SourceAddresses { ipv4: Some([10, 86, 77, 7].into()), ipv6: None },
        ..AcceptAttributes::default()
    }
}

fn with_attributes(reply: Reply) -> Reply {
    let Ok(Verdict::Accepted(identity)) = reply else { unreachable!() };
    Ok(Verdict::Accepted(Identity { accept: attributes(), ..identity }))
}

#[tokio::test]
async fn a_source_names_no_factor_and_no_attribute_that_it_can_not_have() {
    let bench = Bench::new(&[
        ("ann", with_attributes(accepted_as("ann@uni.example", "1", &["staff"]))),
        ("token-bob", with_attributes(accepted("2", &["staff"]))),
        ("cat's", with_attributes(accepted_as("cat@sso.example", "3", &["staff"]))),
    ]);
    // Every factor that there is, and those that there are not.
    *bench.factors.lock().unwrap() = minicbor::decode(&minicbor::to_vec(u8::MAX).unwrap()).unwrap();
    let granted = |outcome| match outcome {
        LoginOutcome::Granted(user) => user,
        outcome => panic!("{outcome:?}"),
    };
    let ann = granted(bench.log_in("ann@uni.example", "right").await);
    let bob = granted(bench.log_in("token-bob", "right").await);
    let back = bench.auth.log_in_at_provider(redeem("cat's"), [192, 0, 2, 1].into(), DEVICE, NOW);
    let cat = granted(back.await);
    assert_eq!(cat.factors, Factors::from("pwd otp mca mfa"), "the key of a client is checked here");
    for user in [&ann, &cat] {
        assert_eq!(user.addresses, SourceAddresses::default(), "{}", user.name);
        assert_eq!(user.limits, SourceLimits::default(), "{}", user.name);
    }
    assert_eq!((bob.addresses, bob.limits), (attributes().addresses, attributes().limits));
}

#[tokio::test]
async fn a_browser_is_sent_to_addresses_of_https_alone() {
    let bench = Bench::new(&[]);
    let address = async |said: &str| {
        let text = || Text::cut("x");
        let login = LoginAddress {
            source: Text::cut("uni"),
            state: Text::new(said).unwrap(),
            nonce: text(),
            challenge: text(),
            max_age_s: None,
        };
        bench.auth.address_at_provider(login).await
    };
    let good = "https://sso.example/login?x=1&y=%20#z";
    assert_eq!(address(good).await.as_deref(), Ok(good));
    for said in [
        "http://sso.example/login",
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "https://ann@evil.example/",
        "https://sso.example/\r\nSet-Cookie: a=b",
        "https://sso.example/ä",
        "https://",
        "",
    ] {
        assert_eq!(address(said).await, Err(Refusal::SourceUnavailable), "{said:?}");
    }
}
