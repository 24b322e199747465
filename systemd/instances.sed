# Derives plog@.service, for several brokers on one host, from plog.service:
#
#   sed -f systemd/instances.sed systemd/plog.service >/etc/systemd/system/plog@.service
#
# `systemctl start plog@NAME` starts a broker with the settings in /etc/plog/NAME.properties, which must have
# their own listeners and log.dirs.
s|plog broker$|plog broker %i|
s|/etc/plog/server\.properties|/etc/plog/%i.properties|
s|/var/lib/plog|/var/lib/plog/%i|
s|^StateDirectory=plog|StateDirectory=plog/%i|
