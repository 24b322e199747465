# Derives a page of the Debian package from a page of the sources: drops what concerns a checkout only.
#
#   sed -f systemd/deb/pages.sed docs/OPERATIONS.md
#
# A line that ends with the comment `checkout` is dropped, and so is a block of lines between the comments
# `checkout:` and `checkout ends`. Both comments are invisible in a page.
/^<!-- checkout: -->$/,/^<!-- checkout ends -->$/d
/ <!-- checkout -->$/d
# The package's own pages are beside this file; their links lead to where the package has their targets.
s|](\.\./\.\./docs/|](docs/|g
s|](examples\.md|](examples/README.md|g
s|](README\.md|](../README.md|g
