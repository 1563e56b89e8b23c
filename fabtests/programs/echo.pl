# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# echo.pl server|client ADDRESS PORT: the server forks for each connection and sends back what it is sent; the client has eight
# processes with 25 connections each, one after another.
use strict;
use warnings;
use IO::Socket::INET;

my ($role, $address, $port) = @ARGV;

sub write_all {
    my ($connection, $data) = @_;
    for (my $done = 0; $done < length $data;) {
        my $n = syswrite $connection, $data, length($data) - $done, $done;
        die "write: $!\n" unless defined $n;
        $done += $n;
    }
}

sub serve {
    my $listener = IO::Socket::INET->new(LocalAddr => $address, LocalPort => $port, Listen => 64, ReuseAddr => 1)
        or die "listen: $!\n";
    $SIG{CHLD} = 'IGNORE';
    $SIG{TERM} = sub { exit 0 };
    while (1) {
        my $connection = $listener->accept or next;
        my $child = fork;
        die "fork: $!\n" unless defined $child;
        if ($child == 0) {
            close $listener;
            while (my $n = sysread $connection, my $data, 65536) {
                write_all($connection, $data);
            }
            exit 0;
        }
        close $connection;
    }
}

sub talk {
    my ($number) = @_;
    my $connection = IO::Socket::INET->new(PeerAddr => $address, PeerPort => $port) or die "connect: $!\n";
    for my $i (1 .. 200) {
        my $message = pack('NN', $number, $i) x (1 + ($number * $i) % 700);
        write_all($connection, $message);
        my $back = '';
        while (length $back < length $message) {
            my $n = sysread $connection, $back, length($message) - length $back, length $back;
            die "an end after ${\length $back} bytes\n" unless $n;
        }
        die "message $i of client $number came back changed\n" if $back ne $message;
    }
    shutdown $connection, 1;
    die "bytes behind the last message\n" if sysread $connection, my $rest, 1;
}

sub clients {
    my @children;
    for my $worker (0 .. 7) {
        my $child = fork;
        die "fork: $!\n" unless defined $child;
        if ($child == 0) {
            talk($worker * 25 + $_) for 0 .. 24;
            exit 0;
        }
        push @children, $child;
    }
    my $good = 0;
    for (@children) {
        waitpid $_, 0;
        $good += 25 if $? == 0;
    }
    print "$good of 200 clients had everything back\n";
    exit($good == 200 ? 0 : 1);
}

$role eq 'server' ? serve() : clients();
